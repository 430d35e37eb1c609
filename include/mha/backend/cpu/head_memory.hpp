// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../core/check.hpp"
#include "../../core/workspace.hpp"
#include "../simd/backward_memory.hpp"
#include "../simd/tile_kernels.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// How the work of a head is cut: blocks of keys × pairs of query tiles, which share one pass over dK and dV, within
/// pieces that stay in the second-level cache and are what threads share.
struct BackwardTiling {
  static constexpr Index block = 96;  ///< keys
  static constexpr Index key_piece = 3 * block;
  static constexpr Index together = 2;  ///< query tiles

  Index lanes;                 ///< queries of a tile
  Index query_piece;           ///< tiles
  Index query_dim, value_dim;  ///< head sizes in whole registers

  template <class A>
  BackwardTiling(const simd::TileKernels<A>& kernels, Index head_dim, Index v_dim)
      : lanes(kernels.lanes),
        query_piece(std::max<Index>(together, 288 / kernels.lanes)),
        query_dim(blocks_of(head_dim, kernels.width) * kernels.width),
        value_dim(blocks_of(v_dim, kernels.width) * kernels.width) {}

  Index tiles(Index queries) const { return blocks_of(queries, lanes); }
  Index query_pieces(Index queries) const { return blocks_of(tiles(queries), query_piece); }
  static Index key_pieces(Index keys) { return blocks_of(keys, key_piece); }
};

/// What one worker needs for a block of keys × `together` tiles.
template <class A> struct BackwardScratch {
  A *p, *ds, *visible, *ones;
  simd::PairScratch<A> pairs;
  Index *first, *last;  ///< of each key, the queries that may see it

  BackwardScratch(Workspace::Frame& frame, Index lanes, bool log_sum_exp_apart = false, bool score_gradient = false,
                  int score_tables = 0)
      : pairs(frame, BackwardTiling::block, lanes, log_sum_exp_apart, score_gradient, score_tables) {
    const std::size_t size =
        static_cast<std::size_t>(BackwardTiling::block * BackwardTiling::together) * static_cast<std::size_t>(lanes);
    p = frame.take<A>(size);
    ds = frame.take<A>(size);
    visible = frame.take<A>(size);
    ones = frame.take<A>(static_cast<std::size_t>(lanes));
    std::fill_n(ones, lanes, A(1));
    first = frame.take<Index>(std::size_t{BackwardTiling::block});
    last = frame.take<Index>(std::size_t{BackwardTiling::block});
  }
};

/// The operands and sums of one query head of one sequence, in accumulator precision and rows of whole registers.
template <class A> struct HeadMemory {
  A *q, *d_out, *k, *v;      ///< rows (tiles · lanes or Lk, padded head size)
  A *q_lanes, *d_out_lanes;  ///< the same of each tile as (head size, lanes)
  A* dq;                     ///< of each tile (D, lanes)
  A *dk, *dv;                ///< (Lk, padded head size)
  simd::RowMemory<A> rows;
  bool* finite;  ///< of each tile's queries, then of each piece of keys

  HeadMemory(Workspace::Frame& frame, const BackwardTiling& tiling, Index queries, Index keys, Index head_dim,
             Index v_dim, bool log_sum_exp_apart = false, int padded_slots = 0)
      : rows(frame, tiling.tiles(queries), tiling.lanes, log_sum_exp_apart, padded_slots) {
    const auto take = [&](Index count, Index columns) {
      return frame.take<A>(static_cast<std::size_t>(count) * static_cast<std::size_t>(columns));
    };
    const Index tiles = tiling.tiles(queries), all = tiles * tiling.lanes;
    q = take(all, tiling.query_dim);
    d_out = take(all, tiling.value_dim);
    k = take(keys, tiling.query_dim);
    v = take(keys, tiling.value_dim);
    q_lanes = take(all, head_dim);
    d_out_lanes = take(all, v_dim);
    dq = take(all, head_dim);
    dk = take(keys, tiling.query_dim);
    dv = take(keys, tiling.value_dim);
    finite =
        frame.take<bool>(static_cast<std::size_t>(tiles) + static_cast<std::size_t>(BackwardTiling::key_pieces(keys)));
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
