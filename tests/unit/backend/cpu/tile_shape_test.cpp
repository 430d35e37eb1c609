// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/tile_shape.hpp>

namespace {

namespace cpu = mha::detail::cpu;
using mha::Index;

TEST(TileRows, AreQueriesOfEveryHead) {
  EXPECT_EQ((cpu::TileRows{.b = 1, .h = 4, .heads = 4, .first = 7, .count = 3}.lanes()), 12);
}

TEST(KeyChunk, EndsWithABlock) { EXPECT_EQ(cpu::key_chunk % cpu::key_block, 0); }

TEST(TileRows, AreVisitedOneByOneAndByRegisters) {
  const cpu::TileRows rows{.b = 0, .h = 2, .heads = 2, .first = 5, .count = 6};
  Index next = 0;
  cpu::for_each_row(rows, [&](Index h, Index i, Index lane) {
    EXPECT_EQ(lane, next++);
    EXPECT_EQ(h, 2 + lane / 6);
    EXPECT_EQ(i, 5 + lane % 6);
  });
  EXPECT_EQ(next, 12);
  next = 0;
  std::vector<Index> sizes;
  cpu::for_each_register(rows, 4, [&](Index h, Index i, Index lane, Index n) {
    EXPECT_EQ(lane, next);
    EXPECT_EQ(h, 2 + lane / 6);
    EXPECT_EQ(i, 5 + lane % 6);
    next += n;
    sizes.push_back(n);
  });
  EXPECT_EQ(sizes, (std::vector<Index>{4, 1, 1, 4, 1, 1}));
}

}  // namespace
