// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include <mha/backend/cuda/row_blocks.hpp>

namespace {

using namespace mha;
using cuda::RowBlocks;

TEST(RowBlocks, ServeEveryRowTileOfEveryHeadOnce) {
  for (const Index row_tiles : {1, 5})
    for (const Index heads : {1, 6})
      for (const Index batch : {1, 3})
        for (const Index together : {1, 2, 4, 18}) {
          const RowBlocks blocks{row_tiles, heads, heads * batch, std::min(together, heads * batch)};
          std::set<std::tuple<Index, Index, Index>> places;
          for (Index block = 0; block < row_tiles * heads * batch; ++block) {
            const auto place = blocks[block];
            EXPECT_TRUE(place.b >= 0 && place.b < batch && place.h >= 0 && place.h < heads && place.row_tile >= 0 &&
                        place.row_tile < row_tiles);
            EXPECT_TRUE(places.insert({place.b, place.h, place.row_tile}).second);
          }
        }
}

TEST(RowBlocks, RunAsManyHeadsTogetherAsTheCacheHolds) {
  const RowBlocks one = RowBlocks::of(5, 3, 12, 4, 1 << 20);  // 16 groups
  EXPECT_EQ(one.row_tiles, 5);
  EXPECT_EQ(one.heads, 12);
  EXPECT_EQ(one.all, 36);
  EXPECT_EQ(one.together, 36);
  EXPECT_EQ(RowBlocks::of(5, 3, 12, 4, 8 << 20).together, 8) << "two groups of four";
  EXPECT_EQ(RowBlocks::of(5, 3, 12, 4, std::int64_t{1} << 40).together, 4) << "a group at least";
  EXPECT_EQ(RowBlocks::of(5, 3, 12, 1, std::int64_t{1} << 40).together, 1);
  EXPECT_EQ(RowBlocks::of(5, 3, 12, 1, 0).together, 36) << "nothing to hold";
}

TEST(RowBlocks, BeginWithTheLastRowsOfAFewHeads) {
  const RowBlocks blocks{3, 4, 8, 2};
  EXPECT_EQ(blocks[0].row_tile, 2);
  EXPECT_EQ(blocks[1].row_tile, 2);
  EXPECT_EQ(blocks[1].h, 1);
  EXPECT_EQ(blocks[2].row_tile, 1);
  EXPECT_EQ(blocks[5].h, 1);
  EXPECT_EQ(blocks[6].h, 2);
  EXPECT_EQ(blocks[23].b, 1);
  EXPECT_EQ(blocks[23].row_tile, 0);
}

}  // namespace
