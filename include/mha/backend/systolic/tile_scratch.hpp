// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "../../core/workspace.hpp"
#include "softmax.hpp"
#include "tiles.hpp"

/// The memory that tiles of queries are computed in.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Columns of the output that leave a tile at a time.
inline constexpr Index stored_at_once = 64;

/// Scratch of one worker that its tiles of queries use in turn.
struct BlockScratch {
  float* s;          ///< (64, lanes)
  std::uint32_t* p;  ///< (256 / 32, lanes / 16, 16, 16)
  bfloat16* rows;    ///< rounded rows of the queries, or of the output
  float* out_rows;   ///< (16, 64)
  bfloat16* finite;  ///< values of a key block without NaN and infinities: (Dv / 16, 2, 16, 32)

  BlockScratch(Workspace::Frame& frame, Index lanes, Index head_dim, Index value_dim) {
    const auto size = [](Index a, Index b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
    const Index values = round_up(value_dim, tile_side);
    s = frame.take<float>(size(key_block, lanes));
    p = frame.take<std::uint32_t>(size(value_block / 2, lanes));
    rows = frame.take<bfloat16>(size(lanes, round_up(head_dim, tile_depth)));
    out_rows = frame.take<float>(size(tile_side, stored_at_once));
    finite = frame.take<bfloat16>(size(key_block, values));
  }
};

/// What a tile of queries keeps from block to block.
struct TileState {
  std::uint32_t* q;  ///< (D / 32, lanes / 16, 16, 16)
  float* out;        ///< (Dv, lanes)
  SoftmaxRows rows;

  TileState(Workspace::Frame& frame, Index lanes, Index head_dim, Index value_dim) {
    const auto take = [&](Index n) {
      return frame.take<float>(static_cast<std::size_t>(n) * static_cast<std::size_t>(lanes));
    };
    q = frame.take<std::uint32_t>(static_cast<std::size_t>(round_up(head_dim, tile_depth) / 2) *
                                  static_cast<std::size_t>(lanes));
    // Heads begin in any lane, and leave the tile by registers, the last of which may reach beyond the lanes.
    const Index values = round_up(value_dim, tile_side);
    out = frame.take<float>(static_cast<std::size_t>(values) * static_cast<std::size_t>(lanes) + tile_side);
    rows = {take(1), take(1), take(1), take(1), take(2), lanes, 0.f};
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
