// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "device.hpp"

/// Dense products by cuBLASLt.
namespace mha::inline MHA_NAMESPACE::cuda {

/// The scalars that cuBLASLt multiplies, each in its own precision: float is float, never tf32.
template <class T>
constexpr bool multiplies =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;
template <class T>
constexpr cudaDataType_t data_type = std::is_same_v<T, double>  ? CUDA_R_64F
                                     : std::is_same_v<T, float> ? CUDA_R_32F
                                     : std::is_same_v<T, half>  ? CUDA_R_16F
                                                                : CUDA_R_16BF;

/// A matrix as cuBLASLt wants it: one stride is 1, the other spans a whole row or column.
struct Operand {
  const void* data = nullptr;
  Index rows = 0, columns = 0;
  std::int64_t stride = 0;  ///< between rows, or columns if those are contiguous
  bool by_columns = false;

  auto operator<=>(const Operand&) const = default;
};

/// The view as an operand; nothing if its elements lie otherwise, so that it has to be copied first.
template <class T> std::optional<Operand> operand(const TensorView<T, 2>& v) {
  const auto [rows, columns] = v.extent;
  const auto fits = [](Index along, std::ptrdiff_t unit, Index across, std::ptrdiff_t stride) {
    return (unit == 1 || along <= 1) && (stride >= along || across <= 1);
  };
  if (fits(columns, v.stride[1], rows, v.stride[0]))
    return Operand{v.data, rows, columns, rows <= 1 ? std::max(columns, Index{1}) : v.stride[0], false};
  if (fits(rows, v.stride[0], columns, v.stride[1]))
    return Operand{v.data, rows, columns, columns <= 1 ? std::max(rows, Index{1}) : v.stride[1], true};
  return {};
}

/// c = a · b + added + bias.
///
/// Shapes    a (M, K)  b (K, N)  c, added (M, N), by rows  bias (N), contiguous; null data for no bias, nothing added.
///           What is added may be c itself
/// Scalars   c, what is added and the bias have the factors' unless the result's is named: float of 16 bits
struct Product {
  cudaDataType_t type;
  Operand a, b, c;
  const void* bias = nullptr;
  Operand added{};
  cudaDataType_t result = type;

  bool adds() const { return added.data != nullptr; }
  /// Whether cuBLASLt may have no algorithm for it though it has one for a · b: its caller knows another way.
  bool may_have_none() const { return bias != nullptr || (adds() && added != c); }
};

/// Where a handle of cuBLASLt was made, which is where it is destroyed.
struct HandleDestroy {
  int device = any_device;
  void operator()(cublasLtHandle_t handle) const noexcept {
    release_on(device, [&] { static_cast<void>(cublasLtDestroy(handle)); });
  }
};

/// The handle, and what cuBLASLt chose for each product it was asked for.
class Products {
  struct Key {
    int type, result;
    Operand a, b, c, added;
    unsigned alignment[4];
    bool bias, adds;
    auto operator<=>(const Key&) const = default;
  };

 public:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t scratch = 0;
    bool found = false;
  };

  /// Choices that are kept: more than a model has shapes of weights, and as many lengths of a prompt.
  static constexpr std::size_t most_choices = 256;

  /// Whether the product's choice is kept.
  bool knows(const Product& p) const { return choices_.contains(key_of(p)); }
  std::size_t choices() const { return choices_.size(); }

  /// cuBLASLt's best algorithm, asked for once while it is kept: none where it cannot add this on the way. The one not
  /// used for longest makes room.
  ///
  /// Errors    CudaError if there is none though nothing but c itself was to be added
  Choice choose(const Product& p) {
    const Key key = key_of(p);
    if (const auto known = choices_.find(key); known != choices_.end()) {
      known->second.used = ++uses_;
      return known->second.choice;
    }

    Setup setup(p);
    cublasLtMatmulPreferenceOpaque_t wishes;
    check(cublasLtMatmulPreferenceInit(&wishes), "cublasLtMatmulPreferenceInit");
    const auto wish = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(&wishes, what, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    wish(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_scratch);
    // A depth that is split is joined in the accumulator: the default lets parts be rounded to 16 bits.
    wish(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[1]);  // its A is our b, see Setup
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[0]);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[3]);
    wish(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[2]);
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(), &setup.what, &setup.b, &setup.a,
                                                                 &setup.added, &setup.c, &wishes, 1, &best, &count);
    const bool found = status == CUBLAS_STATUS_SUCCESS && count > 0 && best.state == CUBLAS_STATUS_SUCCESS;
    if (!found && !p.may_have_none()) {
      check(status, "cublasLtMatmulAlgoGetHeuristic");
      mha::detail::throw_error(CudaError("cublasLtMatmulAlgoGetHeuristic: no algorithm for a product of (" +
                                         std::to_string(p.a.rows) + ", " + std::to_string(p.a.columns) + ") and (" +
                                         std::to_string(p.b.rows) + ", " + std::to_string(p.b.columns) + ")"));
    }
    const Choice choice{best.algo, best.workspaceSize, found};
    if (choices_.size() == most_choices)
      choices_.erase(std::min_element(choices_.begin(), choices_.end(),
                                      [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    choices_.emplace(key, Kept{choice, ++uses_});
    return choice;
  }

  /// Enqueues the product; scratch has the choice's bytes and is the stream's until it is done.
  void run(const Product& p, const Choice& choice, void* scratch, cudaStream_t stream) {
    Setup setup(p);
    const double one = 1, add = p.adds() ? 1 : 0;
    const float one_single = 1, add_single = p.adds() ? 1 : 0;
    const bool wide = p.type == CUDA_R_64F;
    const void* const alpha = wide ? static_cast<const void*>(&one) : &one_single;
    const void* const beta = wide ? static_cast<const void*>(&add) : &add_single;
    void* const c = const_cast<void*>(p.c.data);
    check(cublasLtMatmul(handle(), &setup.what, alpha, p.b.data, &setup.b, p.a.data, &setup.a, beta,
                         p.adds() ? p.added.data : c, &setup.added, c, &setup.c, &choice.algorithm, scratch,
                         choice.scratch, stream),
          "cublasLtMatmul");
  }

 private:
  static constexpr std::size_t most_scratch = std::size_t{32} << 20;  // what NVIDIA advises for its newest cards

  struct Kept {
    Choice choice;
    std::uint64_t used;
  };

  static Key key_of(const Product& p) {
    const Operand& added = p.adds() ? p.added : p.c;
    Key key{p.type,
            p.result,
            p.a,
            p.b,
            p.c,
            added,
            {aligned(p.a.data), aligned(p.b.data), aligned(p.c.data), aligned(added.data)},
            p.bias != nullptr,
            p.adds()};
    key.a.data = key.b.data = key.c.data = key.added.data = nullptr;
    return key;
  }

  /// The largest power of two, at most 256, that divides an address.
  static unsigned aligned(const void* p) {
    const auto bits = reinterpret_cast<std::uintptr_t>(p) | 256u;
    return static_cast<unsigned>(bits & (~bits + 1));
  }

  /// cuBLASLt thinks in columns: rows of ours are its columns, so it multiplies cᵀ = bᵀ aᵀ, and adds a bias per row of
  /// cᵀ.
  struct Setup {
    cublasLtMatmulDescOpaque_t what;
    cublasLtMatrixLayoutOpaque_t a, b, c, added;

    explicit Setup(const Product& p) {
      const bool wide = p.type == CUDA_R_64F;
      check(
          cublasLtMatmulDescInit(&what, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescInit");
      const auto say = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        check(cublasLtMatmulDescSetAttribute(&what, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
      };
      say(CUBLASLT_MATMUL_DESC_TRANSA, p.b.by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
      say(CUBLASLT_MATMUL_DESC_TRANSB, p.a.by_columns ? CUBLAS_OP_T : CUBLAS_OP_N);
      if (p.bias != nullptr) {
        say(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        say(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
        say(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, p.result);
      }
      lay(a, p.type, p.a);
      lay(b, p.type, p.b);
      lay(c, p.result, p.c);
      lay(added, p.result, p.adds() ? p.added : p.c);
    }

    static void lay(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, const Operand& x) {
      const auto along = static_cast<std::uint64_t>(x.by_columns ? x.rows : x.columns);
      const auto across = static_cast<std::uint64_t>(x.by_columns ? x.columns : x.rows);
      check(cublasLtMatrixLayoutInit(&layout, type, along, across, x.stride), "cublasLtMatrixLayoutInit");
    }
  };

  cublasLtHandle_t handle() {
    if (handle_ == nullptr) {
      const int device = current_device();
      cublasLtHandle_t made = nullptr;
      check(cublasLtCreate(&made), "cublasLtCreate");
      handle_ = {made, HandleDestroy{device}};
    }
    return handle_.get();
  }

  std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, HandleDestroy> handle_;
  std::map<Key, Kept> choices_;
  std::uint64_t uses_ = 0;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
