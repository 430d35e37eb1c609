// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/split.hpp>

#include "random.hpp"

namespace {

using mha::Index;
using mha::cuda::chunk_of;
using mha::cuda::split_count;
using mha::cuda::SplitLimits;
using mha::cuda::SplitParts;
using mha::cuda::TileRange;

TEST(Split, ChunksCoverEveryTileOnce) {
  for (Index tiles = 0; tiles <= 40; ++tiles)
    for (Index chunks = 1; chunks <= 45; ++chunks) {
      Index next = 0;
      for (Index c = 0; c < chunks; ++c) {
        const TileRange range = chunk_of(tiles, chunks, c);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, tiles / chunks);
        EXPECT_LE(range.end - range.begin, tiles / chunks + 1);
        if (tiles >= chunks) {
          EXPECT_LT(range.begin, range.end);
        }
        next = range.end;
      }
      EXPECT_EQ(next, tiles);
    }
}

TEST(Split, ChunksOfTheLongestSequence) {
  const Index tiles = 2147483647, chunks = 128;
  EXPECT_EQ(chunk_of(tiles, chunks, 0).begin, 0);
  EXPECT_EQ(chunk_of(tiles, chunks, chunks - 1).end, tiles);
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
    for (Index c = 0; c < chunks; ++c) {
      const TileRange range = chunk_of(tiles, chunks, c);
      ASSERT_GE(range.end - range.begin, limits.least_tiles);
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
