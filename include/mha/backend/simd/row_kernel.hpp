// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../config.hpp"
#include "isa.hpp"
#include "panel_layout.hpp"
#include "vector.hpp"
#include "widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// out (columns) = before + row (depth) · matrix (depth, columns), the matrix as it lies, its rows `stride` apart.
///
/// `before` may be null for none; before, block and out hold whole registers.
template <class A, class S> struct RowArgs {
  const A* row;
  const S* matrix;
  std::ptrdiff_t stride;
  Index depth, columns;
  const A* before;
  A* block;  ///< scratch, like out
  A* out;
};

/// The product of one row and a matrix that is not packed, bound by reading it: a few of its rows at a time, from end
/// to end, their sums in the first-level cache.
///
/// Numerics  the chains of PanelBody, and so its bits
template <class A, class S> struct RowBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(RowArgs<A, S> p) {
    for (Index k = 0; k < p.depth; k += depth_block) {
      const Index end = std::min(k + depth_block, p.depth);
      for (Index first = k; first < end;) {
        const bool begins = first == k;
        if (end - first >= together) {
          some<Isa, together>(p, first, begins);
          first += together;
        } else {
          some<Isa, 1>(p, first, begins);
          ++first;
        }
      }
      add<Isa>(p, k == 0 ? p.before : p.out);
    }
  }

 private:
  static constexpr int together = 8;  // rows: each is a stream that the hardware reads ahead

  template <class Isa, int Rows> MHA_ALWAYS_INLINE static void some(const RowArgs<A, S>& p, Index first, bool begins) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    const S* const matrix = p.matrix + first * p.stride;
    V x[std::size_t{Rows}];
    MHA_UNROLL_8
    for (int i = 0; i < Rows; ++i) broadcast(x[i], p.row[first + i]);
    Index j = 0;
    for (; j + W <= p.columns; j += W) {
      V sum{};
      if (!begins) load(sum, p.block + j);
      MHA_UNROLL_8
      for (int i = 0; i < Rows; ++i) {
        V column;
        load_widened<A, Isa>(column, matrix + i * p.stride + j);
        multiply_add<true>(sum, x[i], column);
      }
      store(p.block + j, sum);
    }
    if (j == p.columns) return;
    V sum{};
    if (!begins) load(sum, p.block + j);
    for (int i = 0; i < Rows; ++i) {
      S rest[std::size_t{W}] = {};
      std::copy_n(matrix + i * p.stride + j, p.columns - j, +rest);
      V column;
      load_widened<A, Isa>(column, +rest);
      multiply_add<true>(sum, x[i], column);
    }
    store(p.block + j, sum);
  }

  template <class Isa> MHA_ALWAYS_INLINE static void add(const RowArgs<A, S>& p, const A* before) {
    using V = vector_t<A, Isa>;
    for (Index j = 0; j < p.columns; j += Vector<A, Isa>::width) {
      V sum, x;
      load(sum, p.block + j);
      if (before != nullptr) {
        load(x, before + j);
        sum = x + sum;
      }
      store(p.out + j, sum);
    }
  }
};

template <class A, class S> using RowKernel = void (*)(RowArgs<A, S>);

/// The kernel of a level.
template <class A, class S> RowKernel<A, S> row_kernel(IsaLevel level) {
  return with_isa(level, [](auto isa) -> RowKernel<A, S> { return &decltype(isa)::template run<RowBody<A, S>>; });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
