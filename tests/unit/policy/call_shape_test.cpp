// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/policy/call_shape.hpp>

namespace {

TEST(CallShape, IsEmptyAtFirst) {
  constexpr mha::CallShape s;
  static_assert(s.batch == 0 && s.heads == 0 && s.queries == 0 && s.keys == 0 && s.origin[7] == 0);
}

TEST(CallShape, CountsThePairsOfAllHeads) {
  EXPECT_EQ((mha::CallShape{.batch = 2, .heads = 3, .queries = 5, .keys = 7}.pairs()), 210);
  EXPECT_EQ((mha::CallShape{.batch = 1 << 20, .heads = 1 << 10, .queries = 1 << 20, .keys = 1 << 20}.pairs()), 0x1p70);
}

TEST(CallShape, KnowsTheKeysOfASequenceByItsLastQuery) {
  static constexpr int offsets[3] = {0, 2, 5}, origins[2] = {-1, 4};
  mha::CallShape s{.batch = 2, .keys = 7, .origin = mha::Origins(origins), .query_offsets = offsets};
  EXPECT_EQ(s.keys_of(0), 7);
  s.last_meets_last = true;
  EXPECT_EQ(s.keys_of(0), 1);
  EXPECT_EQ(s.keys_of(1), 7);
}

TEST(Origins, AreOneForAllSequencesOrOneEach) {
  static constexpr int each[3] = {4, -1, 0};
  constexpr mha::Origins common = -3, ragged(each);
  static_assert(common[0] == -3 && common[5] == -3);
  static_assert(ragged[0] == 4 && ragged[1] == -1 && ragged[2] == 0);
  static_assert(!std::is_convertible_v<const int*, mha::Origins>, "a pointer says so by name");
}

}  // namespace
