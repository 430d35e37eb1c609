// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <Eigen/Core>
#include <limits>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/stored_row.hpp"
#include "../../core/view.hpp"
#include "../backend.hpp"
#include "../executor.hpp"

/// Eigen's matrices over memory of ours, and the products of EigenCpu.
namespace mha::inline MHA_NAMESPACE::detail::eigen {

template <class A, int Order> using Matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Order>;
/// A matrix whose columns (rows, if Order is row-major) are contiguous.
template <class A> using Map = Eigen::Map<Matrix<A, Eigen::ColMajor>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class A, int Order = Eigen::ColMajor>
using ConstMap = Eigen::Map<const Matrix<A, Order>, Eigen::Unaligned, Eigen::OuterStride<>>;

/// Eigen packs the operands of a product on the stack up to this many bytes each, larger ones on the heap.
inline constexpr std::size_t stack_bytes = 128 * 1024;

/// Eigen would split a product among OpenMP's threads, beside those of the backend: as long as this lives, a product on
/// this thread stays on it. A number of threads that the program gave to Eigen itself, Eigen::setNbThreads, goes first.
class OneThread {
#if defined(EIGEN_HAS_OPENMP)
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = omp_get_max_threads();  // of this thread alone
#endif
};

// Of each scalar and order of a one function, so that Eigen's kernels are compiled once. A scale that is always 1 would
// have Eigen compile more of them.

/// c += scale · a · b.
template <class A>
MHA_NO_INLINE void add_product(A scale, const ConstMap<A, Eigen::RowMajor>& a, const ConstMap<A>& b, Map<A> c) {
  [[maybe_unused]] const OneThread one_thread;
  c.noalias() += (scale * a) * b;
}
/// c += a · b.
template <class A> MHA_NO_INLINE void add_product(const ConstMap<A>& a, const ConstMap<A>& b, Map<A> c) {
  [[maybe_unused]] const OneThread one_thread;
  c.noalias() += a * b;
}
template <class A>
MHA_NO_INLINE void add_product_by_rows(const ConstMap<A>& a, const ConstMap<A, Eigen::RowMajor>& b, Map<A> c) {
  [[maybe_unused]] const OneThread one_thread;
  c.noalias() += a * b;
}

/// Rows of contiguous numbers, `stride` apart.
template <class A> struct Rows {
  const A* data;
  std::ptrdiff_t stride;
  Eigen::OuterStride<> outer() const { return Eigen::OuterStride<>(stride); }
};

/// A matrix (rows, width) with contiguous rows in the accumulator's scalar: as it lies, or else copied to `copy`.
template <class A, class T> Rows<A> read_rows(const TensorView<const T, 2>& from, A* copy) {
  const Index rows = from.extent[0], width = from.extent[1];
  if constexpr (std::is_same_v<T, A>)
    if (from.stride[1] == 1 && from.stride[0] >= width) return {from.data, from.stride[0]};
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < width; ++i)
      if constexpr (std::is_same_v<T, scaled_int8>)
        copy[std::ptrdiff_t{r} * width + i] = stored_number<A>(from.pointer(r, 0), i);
      else
        copy[std::ptrdiff_t{r} * width + i] = static_cast<A>(from(r, i));
  return {copy, width};
}

/// Rows [row, row + rows) and columns [column, column + columns).
template <class T>
TensorView<T, 2> block(const TensorView<T, 2>& m, Index row, Index rows, Index column, Index columns) {
  return {m.pointer(row, column), {rows, columns}, {m.stride[0], m.stride[1]}};
}

/// c = a · b + bias, by tiles that do not depend on the number of threads.
///
/// Shapes    a (M, K)  b (K, N)  c (M, N). Eigen is given the transposes, cᵀ = bᵀ · aᵀ, which are column-major.
template <class T, class Threads> void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  constexpr Index side = 256, depth = static_cast<Index>(stack_bytes / sizeof(A) / side);
  const Index rows = call.c.extent[0], columns = call.c.extent[1], inner = call.a.extent[1];
  const Index row_tiles = rows / side + (rows % side != 0), column_tiles = columns / side + (columns % side != 0);
  const std::int64_t tasks = std::int64_t{row_tiles} * column_tiles;
  require(tasks <= std::numeric_limits<Index>::max(), "gemm: ", tasks, " tiles, the limit is ",
          std::numeric_limits<Index>::max());
  constexpr double enough_flop = 2e6;
  const bool alone = tasks <= 1 || 2.0 * rows * columns * inner < enough_flop;

  struct Scratch {
    A *a, *b, *c;
  };
  auto frame = workspace.frame();
  const Index workers = alone ? 1 : threads.workers();
  Scratch* const scratch = frame.template take<Scratch>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w)
    scratch[w] = {frame.template take<A>(std::size_t{depth} * side), frame.template take<A>(std::size_t{depth} * side),
                  frame.template take<A>(std::size_t{side} * side)};

  run_tasks(alone, threads, static_cast<Index>(tasks), [&](Index task, Index worker) {
    const Scratch& own = scratch[worker];
    const Index i = task / column_tiles * side, j = task % column_tiles * side;
    const Index m = std::min(side, rows - i), n = std::min(side, columns - j);
    const TensorView<T, 2> to = block(call.c, i, m, j, n);
    bool in_place = false;
    if constexpr (std::is_same_v<T, A>) in_place = to.stride[1] == 1 && to.stride[0] >= n;
    A* sums = own.c;
    if constexpr (std::is_same_v<T, A>)
      if (in_place) sums = to.data;
    Map<A> c(sums, n, m, Eigen::OuterStride<>(in_place ? to.stride[0] : n));  // cᵀ
    for (Index column = 0; column < n; ++column)
      c.row(column).setConstant(call.bias.data != nullptr ? static_cast<A>(call.bias(j + column)) : A(0));

    for (Index k = 0; k < inner; k += depth) {
      const Index d = std::min(depth, inner - k);
      const Rows<A> a = read_rows(block(call.a, i, m, k, d), own.a);
      const ConstMap<A> right(a.data, d, m, a.outer());  // aᵀ
      const TensorView<const T, 2> b = block(call.b, k, d, j, n), turned{b.data, {n, d}, {b.stride[1], b.stride[0]}};
      if (b.stride[0] == 1 && b.stride[1] != 1) {
        const Rows<A> columns_of_b = read_rows(turned, own.b);
        add_product<A>(A(1), {columns_of_b.data, n, d, columns_of_b.outer()}, right, c);
      } else {
        const Rows<A> rows_of_b = read_rows(b, own.b);
        add_product<A>({rows_of_b.data, n, d, rows_of_b.outer()}, right, c);
      }
    }
    if (!in_place)
      for (Index r = 0; r < m; ++r)
        for (Index column = 0; column < n; ++column) to(r, column) = static_cast<T>(c(column, r));
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::eigen
