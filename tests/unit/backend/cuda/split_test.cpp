// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/split.hpp>

#include "random.hpp"

namespace {

using mha::Index;
using mha::cuda::share_of;
using mha::cuda::split_count;
using mha::cuda::SplitLimits;
using mha::cuda::SplitParts;
using mha::cuda::TileShare;

TEST(Split, WarpsOfChunksTakeEveryTileOnce) {
  for (const Index warps : {1, 4})
    for (const Index tiles : {0, 1, 3, 4, 5, 16, 37, 64})
      for (Index chunks = 1; chunks <= 20; ++chunks) {
        std::vector<int> taken(static_cast<std::size_t>(tiles), 0);
        for (Index chunk = 0; chunk < chunks; ++chunk)
          for (Index warp = 0; warp < warps; ++warp) {
            const TileShare share = share_of(chunks, chunk, warps, warp);
            for (Index t = share.first; t < tiles; t += share.step) ++taken[static_cast<std::size_t>(t)];
          }
        for (const int n : taken) ASSERT_EQ(n, 1);
      }
}

/// Tiles of a whole chunk, from `begin` on.
Index tiles_of(Index chunks, Index chunk, Index warps, Index begin, Index tiles) {
  Index n = 0;
  for (Index warp = 0; warp < warps; ++warp) {
    const TileShare share = share_of(chunks, chunk, warps, warp);
    for (Index t = share.first; t < tiles; t += share.step) n += t >= begin;
  }
  return n;
}

TEST(Split, ChunksAreOfOneSizeWhateverRangeAMaskLeaves) {
  support::Random random("Split.Sizes");
  for (int i = 0; i < 300; ++i) {
    const Index chunks = 1 + random.below(40), begin = random.below(500), tiles = begin + random.below(500), warps = 4;
    const Index whole = (tiles - begin) / (chunks * warps);  // rounds
    for (Index c = 0; c < chunks; ++c) {
      const Index n = tiles_of(chunks, c, warps, begin, tiles);
      ASSERT_GE(n, whole * warps);
      ASSERT_LE(n, (whole + 1) * warps);
    }
  }
}

TEST(Split, GivesNoChunkFewerTilesThanTheLimit) {
  support::Random random("Split.Limits");
  for (int i = 0; i < 2000; ++i) {
    const SplitLimits limits{1 + random.below(9), 1 + random.below(200)};
    const Index groups = 1 + random.below(300), tiles = random.below(5000), slots = 1 + random.below(600);
    const Index chunks = split_count(groups, tiles, slots, limits);
    ASSERT_GE(chunks, 1);
    ASSERT_LE(chunks, limits.most_chunks);
    if (chunks == 1) continue;
    ASSERT_LE(chunks * groups, slots);
    ASSERT_GE(tiles / chunks, limits.least_tiles);
    if (limits.least_tiles >= 8) {
      for (Index c = 0; c < chunks; ++c) ASSERT_GT(tiles_of(chunks, c, 4, 0, tiles), 0);
    }
  }
}

TEST(Split, FillsTheDeviceWhereThereAreKeysForIt) {
  EXPECT_EQ(split_count(1, 100000, 132), 128);  // no more than one block merges
  EXPECT_EQ(split_count(8, 100000, 264), 33);
  EXPECT_EQ(split_count(264, 100000, 264), 1);
  EXPECT_EQ(split_count(265, 100000, 264), 1);
  EXPECT_EQ(split_count(8, 20, 264), 10);
  EXPECT_EQ(split_count(8, 0, 264), 1);
  EXPECT_EQ(split_count(0, 100, 264), 1);
}

TEST(Split, IsMonotone) {
  support::Random random("Split.Monotone");
  for (int i = 0; i < 2000; ++i) {
    const Index groups = 1 + random.below(300), tiles = random.below(3000), slots = 1 + random.below(600);
    const Index chunks = split_count(groups, tiles, slots);
    ASSERT_LE(chunks, split_count(groups, tiles + 1 + random.below(100), slots));
    ASSERT_LE(chunks, split_count(groups, tiles, slots + 1 + random.below(100)));
    ASSERT_GE(chunks, split_count(groups + 1 + random.below(100), tiles, slots));
  }
}

TEST(Split, PartsHaveEachTheirOwnPlace) {
  const SplitParts parts{5, 16, 64};
  const Index groups = 3;
  std::vector<int> taken(static_cast<std::size_t>(parts.size(groups)), 0);
  for (Index group = 0; group < groups; ++group)
    for (Index chunk = 0; chunk < parts.chunks; ++chunk)
      for (Index r = 0; r < parts.rows; ++r) {
        const auto row = static_cast<std::size_t>(parts.row(group, chunk, r));
        for (std::size_t i = 0; i < 2; ++i) ++taken.at(2 * row + i);
        for (std::size_t i = 0; i < 64; ++i) ++taken.at(static_cast<std::size_t>(parts.states(groups)) + row * 64 + i);
      }
  for (const int n : taken) ASSERT_EQ(n, 1);
  EXPECT_EQ((SplitParts{1, 16, 64}.size(groups)), 0);
}

TEST(Split, PartsOfManyGroupsNeedWideNumbers) {
  const SplitParts parts{128, 16, 256};
  EXPECT_EQ(parts.size(100000), std::ptrdiff_t{100000} * 128 * 16 * 258);
}

}  // namespace
