// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../core/scalar.hpp"
#include "../backward.hpp"
#include "isa.hpp"
#include "widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows (rows, n) of sums · factor, `stride` apart, to elements from d on of successive rows of a gradient, the first
/// of which begins at `first`. Sums may be overwritten.
template <class T>
void put_rows(IsaLevel level, const GradientTo<T>& to, Accumulator<T>* sums, std::ptrdiff_t stride, Index rows,
              std::ptrdiff_t first, Index d, Index n, Accumulator<T> factor) {
  using A = Accumulator<T>;
  constexpr Index whole = 64 / sizeof(A);  // registers of every level
  const std::ptrdiff_t row_stride = to.axes().stride[1], column = to.axes().stride[3];
  first += d * column;
  T* const plain = to.plain_row(first);
  const Index at_once = plain == nullptr ? 0 : n / whole * whole;
  if (at_once > 0) store_rows(level, sums, stride, rows, factor, at_once, plain, row_stride);
  if (at_once == n) return;
  for (Index i = 0; i < rows; ++i) {
    A* const rest = sums + i * stride + at_once;
    for (Index j = 0; j < n - at_once; ++j) rest[j] *= factor;
    to.put_row(first + i * row_stride + at_once * column, rest, n - at_once);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
