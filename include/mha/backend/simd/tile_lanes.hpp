// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../config.hpp"
#include "../../core/check.hpp"
#include "../../policy/mask.hpp"
#include "dropout.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Keys [begin, end) and what the mask says of them for all queries of a tile.
struct KeyRange {
  Index begin, end;
  TileVisibility seen;
};

/// Queries [begin, begin + count) of head h of sequence b: the columns of a tile.
struct TileQueries {
  Index b, h, begin, count;
};

/// The queries in the lanes of a tile: rows [first, first + rows) of heads [head, head + heads), which share their
/// keys, one head after the other.
struct TileLanes {
  Index b, head, heads, first, rows;
  Index position;  ///< of row `first`

  constexpr Index count() const { return heads * rows; }
  constexpr Index head_of(Index lane) const { return head + lane / rows; }
  constexpr Index row_of(Index lane) const { return first + lane % rows; }
  /// Those of the i-th head, whose lanes begin at i · rows.
  constexpr TileQueries of(Index i) const { return {b, head + i, position, rows}; }

  /// How many of a group's `ratio` heads, of so many rows each, fit in a tile of `lanes` lanes; 1 at least.
  static constexpr Index most_heads(Index ratio, Index rows, Index lanes) {
    return std::clamp<Index>(lanes / std::max<Index>(rows, 1), 1, ratio);
  }
  /// How many share a tile so that there are no more tiles, and each has about as many.
  static constexpr Index heads_together(Index ratio, Index rows, Index lanes) {
    return blocks_of(ratio, blocks_of(ratio, most_heads(ratio, rows, lanes)));
  }

  /// What the mask says of keys [begin, end) for all lanes.
  template <class Mask> TileVisibility visibility(const Mask& mask, Index begin, Index end) const {
    const TileVisibility seen = mask.visibility(of(0), begin, end);
    for (Index i = 1; i < heads; ++i)
      if (mask.visibility(of(i), begin, end) != seen) return TileVisibility::partial;
    return seen;
  }

  /// Keys [begin, end) without those that no lane sees at either side, in steps of `grain`.
  template <class Mask> KeyRange visible(const Mask& mask, Index begin, Index end, Index grain) const {
    KeyRange all = mask.visible(of(0), begin, end, grain);
    for (Index i = 1; i < heads; ++i) {
      const KeyRange keys = mask.visible(of(i), begin, end, grain);
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

  // The logit of key k and lane i lies at s[k·stride + i·apart].

  /// Logits s ← −∞ where the mask hides a pair of `keys`, asked `grain` keys at a time.
  template <class Mask, class A>
  void hide(const Mask& mask, A* s, Index stride, const KeyRange& keys, Index grain, Index apart = 1) const {
    if (keys.seen == TileVisibility::full) return;
    for (Index i = 0; i < heads; ++i) mask.hide(of(i), at_head(s, i, apart), stride, keys, grain, apart);
  }

  /// s ← score(scale · s) for keys [begin, end).
  template <class Score, class A>
  void apply(const Score& score, A* s, Index stride, A scale, Index begin, Index end, Index apart = 1) const {
    if (!score.exists) return score.apply({b, head, position, count()}, s, stride, scale, begin, end, apart);
    for (Index i = 0; i < heads; ++i) score.apply(of(i), at_head(s, i, apart), stride, scale, begin, end, apart);
  }

  /// What dropout drops of them in a call.
  template <class Call> void set_draws(const Call& call, DroppingLanes& to) const {
    for (Index i = 0; i < heads; ++i) to.set(call, b, head + i, position, i * rows, rows);
  }

  /// f(head, row, lane) for every lane.
  template <class F> void for_each(F&& f) const {
    for (Index h = 0, lane = 0; h < heads; ++h)
      for (Index i = 0; i < rows; ++i, ++lane) f(head + h, first + i, lane);
  }

  /// f(head, row, lane, how many, stride) for lanes from these on whose rows of a tensor (B, L, H, ·) lie one stride
  /// apart.
  template <class F> void for_each_run(const std::ptrdiff_t* strides, F&& f) const {
    if (rows == 1) return f(head, first, Index{0}, heads, strides[2]);
    for (Index h = 0; h < heads; ++h) f(head + h, first, h * rows, rows, strides[1]);
  }

  /// The same in registers of such lanes, the last of which begins early where it would not be full, so that lanes
  /// come twice; one by one where there are fewer.
  template <class F> void for_each_register(const std::ptrdiff_t* strides, Index width, F&& f) const {
    const Index next_head = rows == 1 ? 1 : 0, next_row = 1 - next_head;
    for_each_run(strides, [&](Index h, Index i, Index lane, Index n, std::ptrdiff_t stride) {
      const Index at_once = n < width ? 1 : width;
      for (Index next = 0; next < n; next += at_once) {
        const Index j = std::min(next, n - at_once);
        f(h + j * next_head, i + j * next_row, lane + j, at_once, stride);
      }
    });
  }

 private:
  template <class A> A* at_head(A* s, Index i, Index apart) const { return s + std::ptrdiff_t{i} * rows * apart; }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
