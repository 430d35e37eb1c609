// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/cost.hpp>

namespace {

TEST(StageCost, StagesAdd) {
  const mha::StageCost sum = mha::StageCost{3, 5, 7} + mha::StageCost{10, 20, 40};
  EXPECT_EQ(sum.parameters, 13);
  EXPECT_EQ(sum.flop, 25);
  EXPECT_EQ(sum.bytes, 47);
}

}  // namespace
