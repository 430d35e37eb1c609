// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/systolic/group_plan.hpp>

namespace {

namespace systolic = mha::detail::systolic;
using mha::Index;
using mha::MatrixUnit;

/// One sequence, head size 128, on a unit of 32 lanes, or of 16 where so few are needed.
systolic::GroupPlan plan_of(Index queries, Index keys, Index heads, Index kv_heads, Index workers, Index seen,
                            bool has_choice = true) {
  static constexpr systolic::ProductUnit half{.unit = MatrixUnit::portable, .lanes = 16, .multiply = nullptr};
  const systolic::ProductUnit unit{
      .unit = MatrixUnit::portable, .lanes = 32, .multiply = nullptr, .fewer = has_choice ? &half : nullptr};
  systolic::GroupPlan plan({1, heads, queries, keys, keys - queries}, kv_heads, 128, 128, unit, workers);
  const auto groups = [&](const systolic::GroupPlan& of) { return of.groups(queries); };
  plan.share_chunks(keys / mha::detail::simd::key_chunk, groups,
                    [&](const systolic::GroupPlan& of) { return groups(of) * seen; });
  return plan;
}

TEST(GroupPlan, SharesChunksWhereGroupsAreFew) {
  constexpr Index keys = 8 * mha::detail::simd::key_chunk;
  const auto decode = plan_of(1, keys, 32, 1, 2, 8);
  EXPECT_EQ(decode.chunks, 8);
  EXPECT_EQ(decode.heads_together(1), 32);
  const auto window = plan_of(1, keys, 32, 1, 2, 2);  // two chunks in a window: halves of the heads are as good
  EXPECT_EQ(window.chunks, 1);
  EXPECT_EQ(window.heads_together(1), 16);
  EXPECT_EQ(plan_of(1, keys, 32, 1, 2, 2, false).chunks, 8) << "half of the lanes take as long as all";
  EXPECT_EQ(plan_of(1, keys, 1, 1, 2, 2).chunks, 8) << "one head has no halves";
  EXPECT_EQ(plan_of(1, keys, 32, 8, 2, 8).chunks, 1) << "a group for each key/value head is enough";
  EXPECT_EQ(plan_of(1, keys, 32, 8, 3, 8).chunks, 8);
  EXPECT_EQ(plan_of(2000, keys, 4, 1, 2, 8).chunks, 1) << "so are groups of queries";
  EXPECT_EQ(plan_of(1, keys, 32, 1, 1, 8).chunks, 1) << "one worker";
  EXPECT_EQ(plan_of(1, keys / 8, 32, 1, 2, 1).chunks, 1) << "one chunk";
}

TEST(GroupPlan, StaysOnOneThreadForLittle) {
  EXPECT_EQ(plan_of(1, 1000, 1, 1, 4, 2).workers, 1);
  EXPECT_EQ(plan_of(1, 1000, 1, 1, 4, 2, false).workers, 4) << "empty lanes are work too";
  EXPECT_EQ(plan_of(1, 1000, 32, 1, 4, 2).workers, 4);
}

TEST(GroupPlan, CountsGroupsOfTilesOfQueriesAndHeads) {
  const systolic::GroupPlan few = plan_of(70, 300, 4, 2, 1, 1);  // two heads share keys, 32 lanes
  EXPECT_EQ(few.rows(), 32);
  EXPECT_EQ(few.heads_together(70), 1) << "70 queries fill the lanes alone";
  EXPECT_EQ(few.groups(70), 2 * 2 * 3);
  EXPECT_EQ(few.heads_together(10), 2);
  EXPECT_EQ(few.groups(10), 2);
  EXPECT_EQ(few.groups(0), 0);
  EXPECT_EQ(few.most_tiles(70), 1);
  const systolic::GroupPlan many = plan_of(300, 4000, 4, 2, 1, 1);  // 2 MB of keys and values: a group has 8 tiles
  EXPECT_EQ(many.rows(), 8 * 32);
  EXPECT_EQ(many.groups(300), 2 * 2 * 2);
  EXPECT_EQ(many.most_tiles(300), 8);
  EXPECT_EQ(many.most_tiles(44), 2);
  EXPECT_EQ(plan_of(300, 4000, 4, 2, 2, 1).rows(), 4 * 32) << "smaller ones for several workers";
}

}  // namespace
