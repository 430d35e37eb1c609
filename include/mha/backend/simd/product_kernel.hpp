// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../config.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows that will be wanted soon: `count` rows at data + i·stride, `dim` elements each.
template <class T> struct NextRows {
  const T* data = nullptr;
  std::ptrdiff_t stride = 0;
  Index dim = 0, count = 0;
};

/// Asks for elements [begin, begin + Count) of a row, into the second-level cache: the first has no room for a block.
template <int Count, class T> MHA_ALWAYS_INLINE void prefetch(const T* row, Index begin) {
  constexpr int line = 64 / sizeof(T);
  if constexpr (Count >= line) {
    MHA_UNROLL_16
    for (int d = 0; d < Count; d += line) __builtin_prefetch(row + begin + d, 0, 2);
  } else {
    if (begin % line == 0) __builtin_prefetch(row + begin, 0, 2);
  }
}

/// Where the operands of one product lie: c (n, lanes) = rows (n, depth) · columns (depth, lanes), each with the
/// distance between its rows. `add` keeps what c held; `next` is prefetched meanwhile.
template <class T> struct ProductArgs {
  const T* rows;
  std::ptrdiff_t rows_stride;
  const T* columns;
  std::ptrdiff_t columns_stride;
  T* c;
  std::ptrdiff_t c_stride;
  Index n, depth;
  bool add = false;
  NextRows<T> next = {};
};

/// One step of the depth: sum[i] += rows[i · rows_stride] · a row of columns.
template <class Isa, class V, class T, std::size_t Rows, std::size_t Vectors>
MHA_ALWAYS_INLINE void add_products(V (&sum)[Rows][Vectors], const T* rows, std::ptrdiff_t rows_stride,
                                    const T* columns) {
  constexpr int W = Vector<T, Isa>::width;
  V column[Vectors];
  MHA_UNROLL_8
  for (int j = 0; j < int{Vectors}; ++j) load(column[j], columns + j * W);
  MHA_UNROLL_16
  for (int i = 0; i < int{Rows}; ++i) multiply_add_all<Rows * Vectors == 1>(sum[i], rows[i * rows_stride], column);
}

/// Four steps, whose rows are `step` apart: fewer instructions between the multiply-adds, which matters most where
/// something else takes a part of what the core can issue.
template <class Isa, class V, class T, std::size_t Rows, std::size_t Vectors>
MHA_ALWAYS_INLINE void add_four_products(V (&sum)[Rows][Vectors], const T* rows, std::ptrdiff_t step,
                                         std::ptrdiff_t rows_stride, const T* columns, std::ptrdiff_t columns_stride) {
  add_products<Isa>(sum, rows, rows_stride, columns);
  add_products<Isa>(sum, rows + step, rows_stride, columns + columns_stride);
  add_products<Isa>(sum, rows + 2 * step, rows_stride, columns + 2 * columns_stride);
  add_products<Isa>(sum, rows + 3 * step, rows_stride, columns + 3 * columns_stride);
}

/// The dense product under both attention scores and projections: Rows rows × Vectors registers of columns at a time.
///
/// Numerics  every element is one chain of fused multiply-adds from 0 in the order of the depth, added to c at the end:
///           its bits do not depend on n, on the tile or on which operand lies in lanes
template <class T, int Rows, int Vectors> struct ProductBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(ProductArgs<T> p) {
    Index i = 0;
    for (; i + Rows <= p.n; i += Rows) some_rows<Isa, Rows>(p, i);
    for (; i < p.n; ++i) some_rows<Isa, 1>(p, i);
  }

 private:
  template <class Isa, int RowCount> MHA_ALWAYS_INLINE static void some_rows(const ProductArgs<T>& p, Index first) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    const T* const rows = p.rows + first * p.rows_stride;
    const T* columns = p.columns;
    const std::ptrdiff_t rows_stride = p.rows_stride, columns_stride = p.columns_stride;
    const Index depth = p.depth, wanted = first + RowCount <= p.next.count ? p.next.dim : 0;
    const T* const ahead = p.next.data + first * p.next.stride;
    V sum[std::size_t{RowCount}][std::size_t{Vectors}];
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = V{};
    }
    Index k = 0;
    if constexpr (RowCount == Rows)
      for (; k + 4 <= depth; k += 4, columns += 4 * columns_stride) {
        if (k < wanted && k % (64 / static_cast<Index>(sizeof(T))) == 0) {
          MHA_UNROLL_16
          for (int i = 0; i < RowCount; ++i) prefetch<1>(ahead + i * p.next.stride, k);
        }
        add_four_products<Isa>(sum, rows + k, 1, rows_stride, columns, columns_stride);
      }
    for (; k < depth; ++k, columns += columns_stride) add_products<Isa>(sum, rows + k, rows_stride, columns);
    T* const c = p.c + first * p.c_stride;
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) {
        T* const to = c + i * p.c_stride + j * W;
        if (p.add) {
          V before;
          load(before, to);
          sum[i][j] = before + sum[i][j];
        }
        store(to, sum[i][j]);
      }
    }
  }
};

template <class T> using ProductKernel = void (*)(ProductArgs<T>);

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
