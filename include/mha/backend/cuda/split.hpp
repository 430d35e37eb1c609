// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../config.hpp"

/// How the keys of a few queries are shared out to the blocks of a grid.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Tiles first, first + step, … of keys.
struct TileShare {
  Index first, step;
};

/// What a warp of a chunk gets: neighbouring tiles go to neighbouring warps and chunks, so that a mask that hides all
/// but a range of the keys leaves work for everybody.
MHA_HOST_DEVICE constexpr TileShare share_of(Index chunks, Index chunk, Index warps, Index warp) {
  return {chunk * warps + warp, chunks * warps};
}

/// How far a split may go.
struct SplitLimits {
  Index least_tiles = 2;    ///< of a chunk: below, its part of the result costs more than the keys
  Index most_chunks = 128;  ///< that one block merges
};

/// Into how many chunks each of `groups` sets of rows is split so that `slots` blocks, those that run at one time, have
/// work: 1 where the rows alone fill them. It never falls when tiles or slots are added, nor rises with more groups.
constexpr Index split_count(Index groups, Index tiles, Index slots, SplitLimits limits = {}) {
  const Index wanted = groups > 0 ? slots / groups : 1;
  const Index possible = tiles / limits.least_tiles;
  Index chunks = wanted < possible ? wanted : possible;
  if (chunks > limits.most_chunks) chunks = limits.most_chunks;
  return chunks > 1 ? chunks : 1;
}

/// Where the chunks of one set of rows leave their parts: (groups, chunks, rows) states {max, sum}, then (groups,
/// chunks, rows, values) sums of values.
struct SplitParts {
  Index chunks = 1, rows = 0, values = 0;

  /// The place of a row among the states; its values begin at `values` times that.
  MHA_HOST_DEVICE constexpr std::ptrdiff_t row(std::ptrdiff_t group, Index chunk, Index r) const {
    return (group * chunks + chunk) * rows + r;
  }
  /// Numbers of the accumulator that `groups` sets need, states first; none where nothing is split.
  MHA_HOST_DEVICE constexpr std::ptrdiff_t states(std::ptrdiff_t groups) const { return 2 * row(groups, 0, 0); }
  constexpr std::ptrdiff_t size(std::ptrdiff_t groups) const {
    return chunks > 1 ? states(groups) + row(groups, 0, 0) * values : 0;
  }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
