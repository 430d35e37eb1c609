// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../core/scalar.hpp"
#include "../backward.hpp"
#include "isa.hpp"
#include "widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows (rows, n) of sums · factor, `stride` apart, to elements from d on of rows of a gradient, of which row_of(i) is
/// the ith. Sums may be overwritten.
template <class T, class RowOf>
void put_rows(IsaLevel level, const GradientTo<T>& to, Accumulator<T>* sums, std::ptrdiff_t stride, Index rows, Index d,
              Index n, Accumulator<T> factor, const RowOf& row_of) {
  using A = Accumulator<T>;
  constexpr Index whole = 64 / sizeof(A);  // registers of every level
  const auto store = with_isa(
      level, [](auto isa) { return &decltype(isa)::template run<StoreRowBody<A, T>, const A*, A, Index, T*>; });
  for (Index i = 0; i < rows; ++i, sums += stride) {
    const std::ptrdiff_t row = row_of(i) + d * to.axes().stride[3];
    T* const plain = to.plain_row(row);
    const Index at_once = plain == nullptr ? 0 : n / whole * whole;
    if (at_once > 0) store(sums, factor, at_once, plain);
    if (at_once == n) continue;
    for (Index j = at_once; j < n; ++j) sums[j] *= factor;
    to.put_row(row + at_once * to.axes().stride[3], sums + at_once, n - at_once);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
