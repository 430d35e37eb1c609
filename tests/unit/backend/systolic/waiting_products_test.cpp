// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/waiting_products.hpp>

namespace {

using mha::Index;
namespace systolic = mha::detail::systolic;

/// The tiles of c that products had, in order.
std::vector<Index>& multiplied() {
  static std::vector<Index> tiles;
  return tiles;
}
const systolic::ProductUnit noting{mha::MatrixUnit::portable, 32,
                                   [](const systolic::TileProduct& p) { multiplied().push_back(p.tiles); }};
systolic::TileProduct of_tiles(Index n) { return {nullptr, 0, nullptr, nullptr, n, 1, false}; }

TEST(WaitingProducts, AreComputedInOrderHoweverManyThereAre) {
  multiplied().clear();
  systolic::WaitingProducts waiting(true);
  std::vector<Index> expected;
  for (Index i = 0; i < 40; ++i) {
    waiting.add(noting, of_tiles(i));
    expected.push_back(i);
  }
  EXPECT_LT(multiplied().size(), 40u);
  waiting.run();
  EXPECT_EQ(multiplied(), expected);
  waiting.run();
  EXPECT_EQ(multiplied(), expected);
}

TEST(WaitingProducts, DoNotWaitWhereNoneCan) {
  multiplied().clear();
  systolic::WaitingProducts waiting(false);
  waiting.add(noting, of_tiles(3));
  EXPECT_EQ(multiplied(), std::vector<Index>{3});
}

}  // namespace
