// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../config.hpp"
#include "../simd/dropout.hpp"
#include "../simd/tile_policies.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The queries in the lanes of a tile: rows [first, first + rows) of heads [head, head + heads), which share their
/// keys, one head after the other.
struct TileLanes {
  Index b, head, heads, first, rows;
  Index position;  ///< of row `first`

  constexpr Index count() const { return heads * rows; }
  constexpr Index head_of(Index lane) const { return head + lane / rows; }
  constexpr Index row_of(Index lane) const { return first + lane % rows; }
  /// Those of the i-th head, whose lanes begin at i · rows.
  constexpr simd::TileQueries of(Index i) const { return {b, head + i, position, rows}; }

  /// How many of a group's `ratio` heads share tiles of `lanes` lanes, so that each tile has about as many.
  static constexpr Index heads_together(Index ratio, Index rows, Index lanes) {
    const Index most = std::clamp<Index>(lanes / std::max<Index>(rows, 1), 1, ratio);
    return blocks_of(ratio, blocks_of(ratio, most));
  }

  /// What the mask says of keys [begin, end) for all lanes.
  template <class Mask> TileVisibility visibility(const Mask& mask, Index begin, Index end) const {
    const TileVisibility seen = mask.visibility(of(0), begin, end);
    for (Index i = 1; i < heads; ++i)
      if (mask.visibility(of(i), begin, end) != seen) return TileVisibility::partial;
    return seen;
  }

  /// Keys [begin, end) without those that no lane sees at either side, in steps of `grain`.
  template <class Mask> simd::KeyRange visible(const Mask& mask, Index begin, Index end, Index grain) const {
    simd::KeyRange all = mask.visible(of(0), begin, end, grain);
    for (Index i = 1; i < heads; ++i) {
      const simd::KeyRange keys = mask.visible(of(i), begin, end, grain);
      if (keys.seen == TileVisibility::none && all.seen == TileVisibility::none) continue;
      if (keys.seen == TileVisibility::none) {
        all.seen = TileVisibility::partial;
      } else if (all.seen == TileVisibility::none) {
        all = {keys.begin, keys.end, TileVisibility::partial};
      } else {
        if (keys.seen != all.seen) all.seen = TileVisibility::partial;
        all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end), all.seen};
      }
    }
    return all;
  }

  /// Logits s (keys, lanes) ← −∞ where the mask hides a pair.
  template <class Mask>
  void hide(const Mask& mask, float* s, Index lanes, const simd::KeyRange& keys, Index grain) const {
    for (Index i = 0; i < heads; ++i) mask.hide(of(i), s + i * rows, lanes, keys, grain);
  }

  /// s ← score(scale · s) for keys [begin, end).
  template <class Score>
  void apply(const Score& score, float* s, Index lanes, float scale, Index begin, Index end) const {
    if (!score.exists) return score.apply({b, head, position, count()}, s, lanes, scale, begin, end);
    for (Index i = 0; i < heads; ++i) score.apply(of(i), s + i * rows, lanes, scale, begin, end);
  }

  /// What dropout drops of them in a call.
  template <class Call> void set_draws(const Call& call, simd::DroppingLanes& to) const {
    for (Index i = 0; i < heads; ++i) to.set(call, b, head + i, position, i * rows, rows);
  }

  /// f(first lane, how many, stride) for lanes whose rows of a tensor (B, L, H, ·) lie one stride apart.
  template <class F> void for_each_run(const std::ptrdiff_t* strides, F&& f) const {
    if (rows == 1) return f(Index{0}, heads, strides[2]);
    for (Index i = 0; i < heads; ++i) f(i * rows, rows, strides[1]);
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
