// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../core/borrowed.hpp"
#include "../../core/check.hpp"
#include "../lengths.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Sequence b has lengths[b] keys; the rest of its row is padding and hidden. A query that is padding is computed like
/// any other: what stands in its row of the result means nothing, and may be NaN if its x was.
///
/// Shapes    lengths (B)
/// Errors    ShapeError if there is not one length per sequence, or one is negative or above the Lk of its sequence, of
///           the longest where an Origin puts a last query elsewhere than at the last key and in steps of a recordable
///           cache; lengths in device memory are not checked
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

/// The same with the padding in front: sequence b has the last lengths[b] of its keys, as tokenizers batch prompts that
/// are to be continued. Positions stay those of the rows: what depends on distances alone, rotary positions among them,
/// is as without padding.
///
/// Shapes    lengths (B)
/// Errors    as for Padding; and if the batch is ragged, which has no padding, or its sequences have different numbers
///           of keys
struct LeftPadding {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "LeftPadding";
  static constexpr bool borrows = true;
  Borrowed<Index> lengths;
  Index keys = 0;  ///< set by prepared()

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index, Index, Index k) const { return k >= keys - lengths[b]; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index, Index, Index, Index k_begin, Index k_end) const {
    const Index first = keys - lengths[b];
    if (k_end <= first) return TileVisibility::none;
    return k_begin >= first ? TileVisibility::full : TileVisibility::partial;
  }
  LeftPadding prepared(const CallShape& s) const {
    detail::require(s.query_offsets == nullptr,
                    "LeftPadding: a ragged batch has no padding: its offsets say where each sequence begins");
    detail::require(
        !s.uneven_keys,
        "LeftPadding: the sequences have different numbers of keys, or may have in steps of a recordable cache, so "
        "that no position is in front of all");
    detail::require_lengths("LeftPadding", lengths, s);
    return {lengths, s.keys};
  }
  template <class F> LeftPadding with_data(F&& f) const { return {f(lengths), keys}; }
};

}  // namespace mha::inline MHA_NAMESPACE
