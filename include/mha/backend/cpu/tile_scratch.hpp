// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/workspace.hpp"
#include "../simd/tile_kernels.hpp"
#include "tile_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

template <class A, class Frame> simd::TileState<A> take_state(Frame& frame, Index lanes, Index value_dim) {
  const auto take = [&](Index rows) {
    return frame.template take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(lanes));
  };
  return {take(1), take(1), take(value_dim)};
}

/// Scratch of one worker, for one tile. What its names do not say lies with queries in lanes; a tile of few rows has
/// its queries in row_q instead, and the outputs of its states in rows.
template <class A> struct TileScratch {
  A *q, *row_q, *s, *visible, *rescale, *wide_keys, *wide_values, *lane_out;
  simd::TileState<A> part, total;

  template <class Frame> TileScratch(Frame& frame, Index lanes, Index head_dim, Index value_dim, bool widens) {
    const auto take = [&](Index rows, Index columns) {
      return frame.template take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    };
    q = take(head_dim, lanes);
    row_q = take(lanes, head_dim);
    s = take(key_block, lanes);
    visible = take(key_block, lanes);
    rescale = take(1, lanes);
    wide_keys = take(widens ? key_block : lanes, head_dim);
    wide_values = take(widens ? key_block : 0, value_dim);
    lane_out = take(value_dim, lanes);
    part = take_state<A>(frame, lanes, value_dim);
    total = take_state<A>(frame, lanes, value_dim);
  }

  static std::size_t bytes(Index lanes, Index head_dim, Index value_dim, bool widens) {
    const std::int64_t dims = std::int64_t{head_dim} + value_dim;
    return sizeof(A) * static_cast<std::size_t>(lanes * (2 * dims + value_dim + 2 * key_block + 5) +
                                                (widens ? key_block * dims : lanes * std::int64_t{head_dim}));
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
