// SPDX-License-Identifier: Apache-2.0
// As much of cuBLASLt as products.hpp asks for, by its documentation: matrices by columns, sums in the accumulator,
// scratch that is overwritten. What the documentation forbids is an error.
//
// Source    cuBLAS library, "cublasLtMatmul()", "cublasLtMatmulAlgoGetHeuristic()", "cublasLtEpilogue_t"
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include <cublasLt.h>

#include <mha/core/scalar.hpp>

#include "far_backend.hpp"
#include "far_stream.hpp"

struct cublasLtContext {
  int device = support::FarMemory::current;
};

namespace {

struct What {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a, transpose_b;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  cudaDataType_t bias_type;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;

  bool operator==(const Layout&) const = default;
  bool valid() const { return rows > 0 && columns > 0 && stride >= static_cast<std::int64_t>(rows); }
};
struct Wishes {
  std::uint64_t scratch;
  std::uint32_t reductions, alignment[4];
};
/// An algorithm: the product that it was chosen for and what it needs.
struct Algorithm {
  std::uint64_t rows, columns, depth, scratch;
  std::uint32_t alignment[4];
  std::uint64_t epilogue;
};

template <class Mine, class Opaque> Mine get(const Opaque* opaque) {
  static_assert(sizeof(Mine) <= sizeof(Opaque) && std::is_trivially_copyable_v<Mine>);
  Mine mine;
  std::memcpy(&mine, opaque, sizeof mine);
  return mine;
}
template <class Mine, class Opaque> void put(Opaque* opaque, const Mine& mine) {
  static_assert(sizeof(Mine) <= sizeof(Opaque) && std::is_trivially_copyable_v<Mine>);
  std::memcpy(opaque, &mine, sizeof mine);
}
template <class V> cublasStatus_t set(V& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(V)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class F> cublasStatus_t with_type(cudaDataType_t type, F&& f) {
  if (type == CUDA_R_64F) return f(double{});
  if (type == CUDA_R_32F) return f(float{});
  if (type == CUDA_R_16F) return f(mha::half{});
  if (type == CUDA_R_16BF) return f(mha::bfloat16{});
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

/// The sizes of a product that there is, in its scalars.
cublasStatus_t sizes_of(const What& what, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                        Algorithm& to) {
  const bool wide = c.type == CUDA_R_64F;
  if (!a.valid() || !b.valid() || !c.valid() || !d.valid() || c.type != d.type || c.rows != d.rows ||
      c.columns != d.columns || a.type != b.type)
    return CUBLAS_STATUS_INVALID_VALUE;
  // A result in float has factors of any scalar but double, every other its own.
  if (a.type != c.type && (c.type != CUDA_R_32F || a.type == CUDA_R_64F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (what.compute != (wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F) ||
      what.scale != (wide ? CUDA_R_64F : CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool flip_a = what.transpose_a == CUBLAS_OP_T, flip_b = what.transpose_b == CUBLAS_OP_T;
  to.rows = flip_a ? a.columns : a.rows;
  to.depth = flip_a ? a.rows : a.columns;
  to.columns = flip_b ? b.rows : b.columns;
  if ((flip_b ? b.columns : b.rows) != to.depth || c.rows != to.rows || c.columns != to.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  to.epilogue = what.epilogue;
  if (what.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (what.epilogue != CUBLASLT_EPILOGUE_BIAS || wide) return CUBLAS_STATUS_NOT_SUPPORTED;
  return what.bias != nullptr && what.bias_type == c.type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

bool is_aligned(const void* p, std::uint32_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle->device != support::FarMemory::current) std::abort();
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t) { return "a status"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "of the products for tests"; }

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t, cudaDataType type,
                                                 std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  put(layout, Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t what, std::size_t, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  put(what, What{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  What mine = get<What>(what);
  const cublasStatus_t status = attribute == CUBLASLT_MATMUL_DESC_TRANSA           ? set(mine.transpose_a, value, bytes)
                                : attribute == CUBLASLT_MATMUL_DESC_TRANSB         ? set(mine.transpose_b, value, bytes)
                                : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE       ? set(mine.epilogue, value, bytes)
                                : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER   ? set(mine.bias, value, bytes)
                                : attribute == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE ? set(mine.bias_type, value, bytes)
                                                                                   : CUBLAS_STATUS_INVALID_VALUE;
  put(what, mine);
  return status;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t wishes, std::size_t) {
  put(wishes, Wishes{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wishes,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  Wishes mine = get<Wishes>(wishes);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) status = set(mine.scratch, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) status = set(mine.reductions, value, bytes);
  for (int i = 0; i < 4; ++i)
    if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i) status = set(mine.alignment[i], value, bytes);
  put(wishes, mine);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wishes, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  if (handle == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm algorithm{};
  const cublasStatus_t status =
      sizes_of(get<What>(what), get<Layout>(a), get<Layout>(b), get<Layout>(c), get<Layout>(d), algorithm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Wishes mine = get<Wishes>(wishes);
  // Nothing says that there is an algorithm for every C that is not D.
  if (mine.alignment[2] < 4 && !(get<Layout>(c) == get<Layout>(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(algorithm.alignment, mine.alignment, sizeof mine.alignment);
  algorithm.scratch = algorithm.depth < 32 || mine.scratch < 1000 ? 0 : 1000;
  results[0] = {};
  put(&results[0].algo, algorithm);
  results[0].workspaceSize = algorithm.scratch;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* scratch,
                              std::size_t scratch_bytes, cudaStream_t) {
  const What mine = get<What>(what);
  const Layout left = get<Layout>(a_layout), right = get<Layout>(b_layout), to = get<Layout>(d_layout),
               from = get<Layout>(c_layout);
  const Algorithm algorithm = get<Algorithm>(algo);
  Algorithm asked{};
  const cublasStatus_t status = sizes_of(mine, left, right, from, to, asked);
  if (c == d && !(from == to)) return CUBLAS_STATUS_INVALID_VALUE;
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (handle == nullptr || handle->device != support::FarMemory::current || asked.rows != algorithm.rows ||
      asked.columns != algorithm.columns || asked.depth != algorithm.depth || asked.epilogue != algorithm.epilogue)
    return CUBLAS_STATUS_INVALID_VALUE;
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (!support::FarMemory::holds(matrices[i]) || !is_aligned(matrices[i], algorithm.alignment[i]))
      return CUBLAS_STATUS_INVALID_VALUE;
  if (scratch_bytes < algorithm.scratch ||
      (scratch_bytes > 0 && (!support::FarMemory::holds(scratch) || !is_aligned(scratch, 256))))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (mine.bias != nullptr && (!support::FarMemory::holds(mine.bias) || !is_aligned(mine.bias, 16)))
    return CUBLAS_STATUS_INVALID_VALUE;

  const auto multiply = [&](auto scalar, auto stored) {
    using T = decltype(scalar);
    using R = decltype(stored);
    using A = mha::Accumulator<T>;
    const auto at = [](const void* p, const Layout& l, bool flip, std::uint64_t row, std::uint64_t column) {
      if (flip) std::swap(row, column);
      return A(static_cast<const T*>(p)[column * static_cast<std::uint64_t>(l.stride) + row]);
    };
    const A times = *static_cast<const A*>(alpha), keeps = *static_cast<const A*>(beta);
    support::FarStream::enqueue([=] {
      if (scratch_bytes > 0) std::memset(scratch, 0xff, scratch_bytes);
      for (std::uint64_t j = 0; j < asked.columns; ++j)
        for (std::uint64_t i = 0; i < asked.rows; ++i) {
          A sum(0);
          for (std::uint64_t k = 0; k < asked.depth; ++k)
            sum += at(a, left, mine.transpose_a == CUBLAS_OP_T, i, k) *
                   at(b, right, mine.transpose_b == CUBLAS_OP_T, k, j);
          A result = times * sum;
          if (keeps != A(0))
            result += keeps * A(static_cast<const R*>(c)[j * static_cast<std::uint64_t>(from.stride) + i]);
          if (mine.epilogue == CUBLASLT_EPILOGUE_BIAS) result += A(static_cast<const R*>(mine.bias)[i]);
          static_cast<R*>(d)[j * static_cast<std::uint64_t>(to.stride) + i] = R(result);
        }
    });
    return CUBLAS_STATUS_SUCCESS;
  };
  return with_type(left.type, [&](auto scalar) {
    return to.type == left.type ? multiply(scalar, scalar) : multiply(scalar, mha::Accumulator<decltype(scalar)>());
  });
}

}  // extern "C"
