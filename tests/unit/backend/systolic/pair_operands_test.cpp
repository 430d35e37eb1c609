// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <gtest/gtest.h>

#include <mha/backend/systolic/pair_operands.hpp>

namespace {

namespace systolic = mha::detail::systolic;

TEST(PairOperands, RowsAreOf32QueriesAndTilesOf16Lanes) {
  const systolic::PairOperands of{nullptr, nullptr, 1000, 48, nullptr};
  EXPECT_EQ(of.at(0, 0), 1000 + 16);
  EXPECT_EQ(of.at(3, 15), 1000 + 3 * 32 + 31);
  EXPECT_EQ(of.at(3, 16), 2000 + 3 * 32);
  std::uint32_t tiles[3 * systolic::tile_words];
  const systolic::PairOperands in{nullptr, nullptr, 0, 0, tiles};
  EXPECT_EQ(in.tile(0, 15), tiles);
  EXPECT_EQ(in.tile(6, 40), tiles + 2 * systolic::tile_words + 3 * systolic::tile_side);
}

}  // namespace
