// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include <mha/backend/cuda/forward_shape.hpp>

namespace {

using namespace mha;
using cuda::ForwardBlocks;
using cuda::ForwardShape;
using cuda::RowLayout;

TEST(ForwardShape, CountsItsMemory) {
  using Shape = ForwardShape<192, 128, 128, 32, 4, RowLayout::aligned>;
  EXPECT_EQ(Shape::threads, 128);
  EXPECT_EQ(Shape::strips, 2);
  EXPECT_FALSE(Shape::keeps_queries);
  EXPECT_EQ(Shape::shared_bytes, 128 * 192 * 2 + 2 * 32 * (192 + 128) * 2);
  using Wide = ForwardShape<64, 128, 64, 32, 4, RowLayout::aligned>;
  EXPECT_TRUE(Wide::keeps_queries);
  EXPECT_EQ(Wide::shared_bytes, 64 * 128 * 2 + 2 * 32 * (64 + 128) * 2);  // outputs need more room than queries
}

TEST(ForwardBlocks, ServeEveryRowTileOfEveryHeadOnce) {
  for (const Index row_tiles : {1, 5})
    for (const Index heads : {1, 6})
      for (const Index batch : {1, 3})
        for (const Index together : {1, 2, 4, 18}) {
          const ForwardBlocks blocks{row_tiles, heads, heads * batch, std::min(together, heads * batch)};
          std::set<std::tuple<Index, Index, Index>> places;
          for (Index block = 0; block < row_tiles * heads * batch; ++block) {
            const auto place = blocks[block];
            EXPECT_TRUE(place.b >= 0 && place.b < batch && place.h >= 0 && place.h < heads && place.row_tile >= 0 &&
                        place.row_tile < row_tiles);
            EXPECT_TRUE(places.insert({place.b, place.h, place.row_tile}).second);
          }
        }
}

TEST(ForwardBlocks, BeginWithTheLastRowsOfAFewHeads) {
  const ForwardBlocks blocks{3, 4, 8, 2};
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
