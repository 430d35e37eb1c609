// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/check.hpp"
#include "../../core/workspace.hpp"
#include "../simd/backward_memory.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Columns of dK or dV that a unit computes at a time.
inline constexpr Index sums_columns = 2 * tile_side;

/// How the work of a head is cut: pieces of keys × some query tiles are what threads share.
struct BackwardTiling {
  static constexpr Index together = 4;  ///< query tiles of a block, in whole steps of 32: those of one sum of dK and dV
  static constexpr Index query_piece = 8;          ///< tiles
  static constexpr Index key_piece = value_block;  ///< keys of a piece, those of one sum of dQ
  static constexpr Index key_steps = key_piece / tile_depth;

  Index lanes;                 ///< queries of a tile
  Index query_dim, value_dim;  ///< head sizes in whole steps of 32

  BackwardTiling(Index lane_count, Index head_dim, Index v_dim)
      : lanes(lane_count), query_dim(round_up(head_dim, tile_depth)), value_dim(round_up(v_dim, tile_depth)) {}

  Index tiles(Index queries) const { return blocks_of(queries, lanes); }
  Index query_pieces(Index queries) const { return blocks_of(tiles(queries), query_piece); }
  static Index key_pieces(Index keys) { return blocks_of(keys, key_piece); }
  /// Rows in memory.
  Index padded_queries(Index queries) const { return round_up(tiles(queries) * lanes, tile_depth); }
  static Index padded_keys(Index keys) { return round_up(keys, key_block); }
};

/// What one worker needs for a piece's keys × `together` tiles.
struct BackwardScratch {
  float* lanes;  ///< (3, lanes): what weights of a tile have in common
  /// Of 32 keys of a tile, and of the next 32.
  struct Step {
    float *s, *ds;  ///< (32, lanes)
  } steps[2];
  /// Of a tile, and of the one before it.
  std::uint32_t* ds_tiles[2];  ///< (keys / 32, lanes / 16, 16, 16)
  /// Of a block, and of the one before it.
  struct Rows {
    bfloat16 *p, *ds;  ///< (queries / 32, keys, 32)
  } rows[2];
  simd::PairScratch<float> pairs;
  std::uint8_t* visible;  ///< as rows lie: where data is not finite, which pairs are not hidden

  BackwardScratch(Workspace::Frame& frame, Index tile_lanes, bool log_sum_exp_apart, bool score_gradient,
                  int score_tables)
      : lanes(frame.take<float>(3 * static_cast<std::size_t>(tile_lanes))),
        pairs(frame, tile_depth, tile_lanes, log_sum_exp_apart, score_gradient, score_tables) {
    const std::size_t step = static_cast<std::size_t>(tile_depth) * static_cast<std::size_t>(tile_lanes),
                      tile = BackwardTiling::key_steps * step, block = BackwardTiling::together * tile;
    for (Step& of : steps) of = {frame.take<float>(step), frame.take<float>(step)};
    for (std::uint32_t*& of : ds_tiles) of = frame.take<std::uint32_t>(tile / 2);
    for (Rows& of : rows) of = {frame.take<bfloat16>(block), frame.take<bfloat16>(block)};
    visible = frame.take<std::uint8_t>(block);
  }
};

/// The operands of one query head of one sequence in bfloat16, and its sums in float. Rows are whole steps of 32 wide.
struct BackwardMemory {
  bfloat16 *q, *d_out, *k, *v;           ///< rows (padded queries or keys, head size)
  std::uint32_t *q_lanes, *d_out_lanes;  ///< B tiles of S and dP, of each query tile: (D / 32, lanes / 16, 16, 16)
  std::uint32_t *q_depth, *d_out_depth;  ///< B tiles of dK and dV (D / 32, padded queries / 32, 2, 16, 16), finite
  bfloat16* k_transposed;                ///< A tiles of dQ, of each piece of keys: (D / 16, keys / 32, 16, 32), finite
  float* dq;                             ///< of each query tile (D, lanes)
  float *dk, *dv;                        ///< (D / 32, padded keys, 32)
  simd::RowMemory<float> rows;
  bool* finite;  ///< of each tile's queries, then of each block of 64 keys

  BackwardMemory(Workspace::Frame& frame, const BackwardTiling& tiling, Index queries, Index keys,
                 bool log_sum_exp_apart, int padded_slots)
      : rows(frame, tiling.tiles(queries), tiling.lanes, log_sum_exp_apart, padded_slots) {
    const std::size_t n = static_cast<std::size_t>(tiling.padded_queries(queries)),
                      all_keys = static_cast<std::size_t>(BackwardTiling::padded_keys(keys)),
                      d = static_cast<std::size_t>(tiling.query_dim),
                      dv_size = static_cast<std::size_t>(tiling.value_dim);
    q = frame.take<bfloat16>(n * d);
    d_out = frame.take<bfloat16>(n * dv_size);
    k = frame.take<bfloat16>(all_keys * d);
    v = frame.take<bfloat16>(all_keys * dv_size);
    q_lanes = frame.take<std::uint32_t>(n * d / 2);
    d_out_lanes = frame.take<std::uint32_t>(n * dv_size / 2);
    q_depth = frame.take<std::uint32_t>(n * d / 2);
    d_out_depth = frame.take<std::uint32_t>(n * dv_size / 2);
    k_transposed = frame.take<bfloat16>(static_cast<std::size_t>(round_up(keys, BackwardTiling::key_piece)) * d);
    dq = frame.take<float>(n * d);
    dk = frame.take<float>(all_keys * d);
    dv = frame.take<float>(all_keys * dv_size);
    finite = frame.take<bool>(static_cast<std::size_t>(tiling.tiles(queries)) + all_keys / key_block);
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
