// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "../../core/workspace.hpp"
#include "tiles.hpp"

/// The memory that tiles of queries are computed in.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Scratch of one worker that its tiles of queries use in turn.
struct BlockScratch {
  float* s;          ///< (64, lanes)
  std::uint32_t* p;  ///< (256 / 32, lanes / 16, 16, 16)
  bfloat16* rows;    ///< rounded rows of the queries, or of the output
  float* out_rows;   ///< (16, 64)
  bfloat16* finite;  ///< values of a key block without NaN and infinities: (Dv / 16, 2, 16, 32)

  BlockScratch() = default;
  template <class Frame> BlockScratch(Frame& frame, Index lanes, Index head_dim, Index value_dim) {
    const auto size = [](Index a, Index b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
    const Index values = round_up(value_dim, tile_side);
    s = frame.template take<float>(size(key_block, lanes));
    p = frame.template take<std::uint32_t>(size(value_block / 2, lanes));
    rows = frame.template take<bfloat16>(size(lanes, round_up(head_dim, tile_depth)));
    out_rows = frame.template take<float>(size(tile_side, stored_at_once));
    finite = frame.template take<bfloat16>(size(key_block, values));
  }
};

/// What the rows of a tile make of some of their keys, in memory.
///
/// Shapes    out (Dv, lanes): Σ weight · v, not yet divided; anchor, offset, sum (lanes): those of SoftmaxRows
struct TilePart {
  float *out = nullptr, *anchor = nullptr, *offset = nullptr, *sum = nullptr;
  bool added = false;  ///< whether a row saw a key; otherwise `out` holds nothing
};

template <class Frame> TilePart take_part(Frame& frame, Index lanes, Index value_dim) {
  const auto take = [&](Index n) {
    return frame.template take<float>(static_cast<std::size_t>(n) * static_cast<std::size_t>(lanes));
  };
  // Heads begin in any lane, and leave the tile by registers, the last of which may reach beyond the lanes.
  const std::size_t values = static_cast<std::size_t>(round_up(value_dim, tile_side));
  float* const out = frame.template take<float>(values * static_cast<std::size_t>(lanes) + tile_side);
  return {out, take(1), take(1), take(1)};
}

/// What a tile of queries keeps from block to block.
struct TileState {
  std::uint32_t* q;            ///< (D / 32, lanes / 16, 16, 16)
  float *block_sum, *rescale;  ///< of SoftmaxRows, (lanes) and (2, lanes)
  TilePart part, next;         ///< of a chunk of keys, and of the one after it

  /// `chunks`: whether there is more than one chunk of keys.
  template <class Frame> TileState(Frame& frame, Index lanes, Index head_dim, Index value_dim, bool chunks = false) {
    const auto take = [&](Index n) {
      return frame.template take<float>(static_cast<std::size_t>(n) * static_cast<std::size_t>(lanes));
    };
    q = frame.template take<std::uint32_t>(static_cast<std::size_t>(round_up(head_dim, tile_depth) / 2) *
                                           static_cast<std::size_t>(lanes));
    block_sum = take(1);
    rescale = take(2);
    part = take_part(frame, lanes, value_dim);
    if (chunks) next = take_part(frame, lanes, value_dim);
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
