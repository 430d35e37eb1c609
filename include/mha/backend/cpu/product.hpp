// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../core/workspace.hpp"
#include "../simd/product_kernel.hpp"

namespace mha::inline v0::detail::cpu {

/// Rows of the depth that one pass multiplies. A pass adds its sums to c, so this is part of what fixes c's bits.
inline constexpr Index depth_block = 256;

/// c (M, N) += a (M, K) · b (K, N) with the kernels of an instruction-set level, from row-major a and c.
///
/// b row-major: its columns lie in lanes, packed panel by panel; few rows read it in place. b column-major, as a
/// transposed checkpoint is: its columns are rows of the kernel and a's rows lie in lanes, so that only a is packed.
/// Either way an element is the same chain of operations: layouts and numbers of rows change no bits.
template <class A> class DenseProduct {
 public:
  DenseProduct(const TensorView<const A, 2>& a, const TensorView<const A, 2>& b, const TensorView<A, 2>& c,
               IsaLevel isa, bool add)
      : a_(a),
        b_(b),
        c_(c),
        add_(add),
        by_columns_(b.stride[1] == 1 || b.extent[1] == 1),
        kernel_(by_columns_ ? simd::product_kernel<A>(isa, a.extent[0], b.extent[1])
                            : simd::product_kernel<A>(isa, b.extent[1], a.extent[0])) {}

  /// Independent parts: panels of c as wide as the kernel.
  Index parts() const { return (lanes_total() + kernel_.lanes - 1) / kernel_.lanes; }

  /// Elements of scratch a worker needs.
  std::size_t scratch() const {
    return static_cast<std::size_t>(kernel_.lanes) * static_cast<std::size_t>(depth_block + tile_rows);
  }

  void run(Index part, A* scratch) const {
    A* const panel = scratch;
    A* const tile = scratch + std::ptrdiff_t{depth_block} * kernel_.lanes;
    const Index first = part * kernel_.lanes, count = std::min(kernel_.lanes, lanes_total() - first);
    for (Index k = 0; k < depth(); k += depth_block) {
      const Index n = std::min(depth_block, depth() - k);
      if (by_columns_)
        columns_in_lanes(first, count, k, n, panel, tile);
      else
        rows_in_lanes(first, count, k, n, panel, tile);
    }
  }

 private:
  static constexpr Index tile_rows = 64;
  static constexpr Index few_rows = 4;

  Index lanes_total() const { return by_columns_ ? c_.extent[1] : c_.extent[0]; }
  Index depth() const { return a_.extent[1]; }
  bool adds(Index k) const { return add_ || k > 0; }

  void columns_in_lanes(Index first, Index count, Index k, Index n, A* panel, A* tile) const {
    const std::ptrdiff_t lanes = kernel_.lanes;
    const A* columns = &b_(k, first);
    std::ptrdiff_t stride = b_.stride[0];
    if (count < kernel_.lanes || c_.extent[0] > few_rows) {
      for (Index d = 0; d < n; ++d) {
        std::copy_n(&b_(k + d, first), count, panel + d * lanes);
        std::fill_n(panel + d * lanes + count, lanes - count, A(0));
      }
      columns = panel;
      stride = lanes;
    }
    if (count == kernel_.lanes) {
      kernel_.run({&a_(0, k), a_.stride[0], columns, stride, &c_(0, first), c_.stride[0], c_.extent[0], n, adds(k)});
      return;
    }
    for (Index i = 0; i < c_.extent[0]; i += tile_rows) {
      const Index rows = std::min(tile_rows, c_.extent[0] - i);
      kernel_.run({&a_(i, k), a_.stride[0], columns, stride, tile, lanes, rows, n});
      for (Index r = 0; r < rows; ++r)
        for (Index j = 0; j < count; ++j) put(i + r, first + j, tile[r * lanes + j], adds(k));
    }
  }

  void rows_in_lanes(Index first, Index count, Index k, Index n, A* panel, A* tile) const {
    const std::ptrdiff_t lanes = kernel_.lanes;
    for (Index i = 0; i < kernel_.lanes; ++i) {
      const A* const row = i < count ? &a_(first + i, k) : nullptr;
      for (Index d = 0; d < n; ++d) panel[d * lanes + i] = row != nullptr ? row[d] : A(0);
    }
    for (Index j = 0; j < c_.extent[1]; j += tile_rows) {
      const Index columns = std::min(tile_rows, c_.extent[1] - j);
      kernel_.run({&b_(k, j), b_.stride[1], panel, lanes, tile, lanes, columns, n});
      for (Index i = 0; i < count; ++i)
        for (Index r = 0; r < columns; ++r) put(first + i, j + r, tile[r * lanes + i], adds(k));
    }
  }

  void put(Index i, Index j, A sum, bool add) const {
    A& c = c_(i, j);
    c = add ? c + sum : sum;
  }

  const TensorView<const A, 2> a_, b_;
  const TensorView<A, 2> c_;
  const bool add_, by_columns_;
  const simd::WideProduct<A> kernel_;
};

}  // namespace mha::inline v0::detail::cpu
