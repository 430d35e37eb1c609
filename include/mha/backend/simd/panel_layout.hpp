// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "../../config.hpp"
#include "../../core/check.hpp"
#include "../../core/rounded_weights.hpp"
#include "../../core/scalar.hpp"

/// How a panel of weights lies in memory, which is the same for the kernels of every level.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Columns of a panel: 192 bytes of accumulators are whole tiles of registers at every level, so that weights packed
/// under one level multiply under any other.
template <class A> inline constexpr Index panel_columns = 192 / static_cast<Index>(sizeof(A));

/// Rows of the depth in one chain of sums. It is the only size that the bits of a product depend on.
inline constexpr Index depth_block = 256;

/// Rows that lie one after another behind their scales, if S has any.
template <class S> inline constexpr Index panel_group = is_rounded<S> ? weights_per_scale<S> : depth_block;
/// Elements of S before such a group: a scale for each column.
template <class S>
inline constexpr Index panel_lead =
    is_rounded<S> ? panel_columns<Accumulator<S>>* static_cast<Index>(sizeof(WeightScale<S>) / sizeof(S)) : 0;
/// Whether an element has the numbers of two rows, one above the other.
template <class S> inline constexpr bool panel_pairs = std::is_same_v<S, scaled_int4>;

/// Elements of so many rows of a group.
template <class S> constexpr std::ptrdiff_t panel_rows_elements(Index rows) {
  return std::ptrdiff_t{panel_pairs<S> ? blocks_of(rows, 2) : rows} * panel_columns<Accumulator<S>>;
}
/// Where row k of a panel begins, which is the first of its group or, but of pairs, lies behind it.
template <class S> constexpr std::ptrdiff_t panel_row_at(Index k) {
  return panel_rows_elements<S>(k) + std::ptrdiff_t{k / panel_group<S> + 1} * panel_lead<S>;
}
/// Elements that a panel takes.
template <class S> constexpr std::ptrdiff_t panel_elements(Index depth) {
  return panel_rows_elements<S>(depth) + std::ptrdiff_t{blocks_of(depth, panel_group<S>)} * panel_lead<S>;
}
/// Bytes of a row of a panel, with its share of the scales.
template <class S>
inline constexpr std::ptrdiff_t panel_row_bytes = panel_elements<S>(depth_block) *
                                                  static_cast<std::ptrdiff_t>(sizeof(S)) / depth_block;

/// What the sums of a product gain along a block of the depth: in panel_steps.hpp, of pairs in paired_steps.hpp.
template <class A, class S> struct PanelSteps;

static_assert(depth_block % panel_group<scaled_int8> == 0 && depth_block % panel_group<scaled_int4> == 0);
static_assert(panel_group<scaled_int4> % 2 == 0);

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
