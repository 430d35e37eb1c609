// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../core/check.hpp"
#include "../../policy/call_shape.hpp"
#include "../simd/key_chunks.hpp"
#include "../simd/tile_lanes.hpp"
#include "kv_tiles.hpp"
#include "product_unit.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Below this much work of the array, empty lanes included, a call stays on the calling thread.
inline constexpr double enough_flop = 1e7;
/// Packed keys and values of a head from this size on are read by several tiles of queries in turn, block by block.
inline constexpr std::size_t near_bytes = 1u << 20;

/// How the queries of a call are cut into groups of tiles that go through the keys together, and the groups shared
/// among workers: whole ones, or where these are few, one chunk of keys at a time.
struct GroupPlan {
  Index lanes, ratio, kv_heads, workers = 1;
  Index together = 1;  ///< tiles of a group
  Index shares = 1;    ///< groups that the heads of a key/value head make at least
  Index chunks = 1;    ///< of keys that are attended to apart

  GroupPlan(const CallShape& shape, Index all_kv_heads, Index head_dim, Index value_dim, const ProductUnit& unit,
            Index all_workers)
      : lanes(unit.lanes), ratio(shape.heads / all_kv_heads), kv_heads(all_kv_heads) {
    const std::int64_t kv_pairs = std::int64_t{shape.batch} * kv_heads, rows = std::int64_t{shape.queries} * ratio;
    const Index least = unit.of_lanes(1).lanes;  // what one query takes up
    const std::int64_t pieces = (rows + least - 1) / least;
    const double in_lanes = double(kv_pairs) * double(pieces) * least;
    if (2 * in_lanes * shape.keys * (double(head_dim) + value_dim) >= enough_flop) workers = all_workers;
    const std::size_t bytes =
        2 * (KvTiles::key_size(shape.keys, head_dim) + KvTiles::value_size(shape.keys, value_dim));
    // Workers share out groups: small ones, so that none is idle at the end.
    if (bytes >= near_bytes) together = workers == 1 ? most_together : most_together / 2;
    // The heads of a group read their keys together, unless a worker would have none and the parts fill lanes.
    if (kv_pairs > 0)
      shares = static_cast<Index>(
          std::min({(workers + kv_pairs - 1) / kv_pairs, std::int64_t{ratio}, std::max<std::int64_t>(pieces, 1)}));
  }

  static constexpr Index most_together = 8;
  Index rows() const { return together * lanes; }  ///< of a group, at most
  /// Of a sequence with so many queries: the heads of a tile, and what they make of a key/value head and of all.
  Index heads_together(Index queries) const {
    return std::min(simd::TileLanes::heads_together(ratio, queries, lanes), blocks_of(ratio, shares));
  }
  Index head_tiles(Index queries) const { return blocks_of(ratio, heads_together(queries)); }
  /// What they and the queries make, and the tiles of the largest.
  Index query_groups(Index queries) const { return blocks_of(queries, rows()); }
  std::int64_t groups(Index queries) const {
    return std::int64_t{kv_heads} * head_tiles(queries) * query_groups(queries);
  }
  Index most_tiles(Index queries) const { return std::min(together, blocks_of(queries, lanes)); }

  /// Has workers share chunks of keys, if they gain by it. groups_of(plan): of all sequences; parts(): pairs of a group
  /// and a chunk of which a query sees a key.
  template <class Groups, class Parts> void share_chunks(Index all_chunks, Groups&& groups_of, Parts&& parts) {
    if (workers == 1 || all_chunks == 1) return;
    GroupPlan whole_heads = *this;
    whole_heads.shares = 1;
    whole_heads.chunks = all_chunks;
    if (!simd::too_few_tiles(groups_of(whole_heads), workers)) return;
    constexpr Index parts_per_worker = 2;
    const std::int64_t work = parts(whole_heads);
    if (work >= std::int64_t{parts_per_worker} * workers)
      *this = whole_heads;
    else if (groups_of(*this) < workers)
      chunks = all_chunks;
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
