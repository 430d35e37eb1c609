// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// Which rows and heads a block serves: the blocks of a few heads, whose keys and values the cache holds together, run
/// side by side, their last row tiles first, because of a causal mask they are the longest.
struct RowBlocks {
  Index row_tiles = 0;  ///< of the longest sequence
  Index heads = 0;      ///< of a sequence
  Index all = 0;        ///< of all sequences
  Index together = 1;   ///< heads whose blocks run side by side
  Index fewest = 0;     ///< queries of a sequence that is served: those with fewer have a launch of their own

  /// Of a launch over `sequences` of as many heads. Heads that share the rows of the other side run together, `group`
  /// of them, and as many such groups as half of a cache of 32 MiB holds those rows of, `group_bytes` each.
  static constexpr RowBlocks of(Index row_tiles, std::int64_t sequences, Index heads, Index group,
                                std::int64_t group_bytes) {
    constexpr std::int64_t cached = 16 << 20;
    const std::int64_t all = sequences * heads;
    const std::int64_t groups = std::max<std::int64_t>(1, cached / std::max<std::int64_t>(1, group_bytes));
    return {row_tiles, heads, static_cast<Index>(all), static_cast<Index>(std::min(all, groups * group))};
  }

  struct Place {
    Index b, h, row_tile;
  };
  MHA_KERNEL constexpr Place operator[](Index block) const {
    const Index first = block / (row_tiles * together) * together;
    const Index n = all - first < together ? all - first : together;
    const Index in_section = block - first * row_tiles, head = first + in_section % n;
    return {head / heads, head % heads, row_tiles - 1 - in_section / n};
  }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
