// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../core/borrowed.hpp"
#include "../lengths.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Sequence b has lengths[b] keys; the rest of its row is padding and hidden. A query that is padding is computed like
/// any other: what stands in its row of the result means nothing, and may be NaN if its x was.
///
/// Shapes    lengths (B)
/// Errors    ShapeError if there is not one length per sequence, or one is negative or above Lk
struct Padding {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Padding";
  static constexpr bool borrows = true;
  Borrowed<Index> lengths;

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index, Index, Index k) const { return k < lengths[b]; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index, Index, Index, Index k_begin, Index k_end) const {
    if (k_begin >= lengths[b]) return TileVisibility::none;
    return k_end <= lengths[b] ? TileVisibility::full : TileVisibility::partial;
  }
  Padding prepared(const CallShape& s) const {
    detail::require_lengths("Padding", lengths, s);
    return *this;
  }
  template <class F> Padding with_data(F&& f) const { return {f(lengths)}; }
};

}  // namespace mha::inline MHA_NAMESPACE
