// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/mha.hpp>
#include <mha/policy/shared_numbers.hpp>

namespace {

TEST(SharedNumbers, AreSharedUntilACopyWrites) {
  mha::detail::SharedNumbers one({1.f, 2.f});
  const mha::detail::SharedNumbers two = one;
  EXPECT_EQ(one.get().data(), two.get().data());
  one.writable()[1] = 3;
  EXPECT_EQ(one.get()[1], 3);
  EXPECT_EQ(two.get()[1], 2);
  const float* const own = one.get().data();
  one.writable()[0] = 4;
  EXPECT_EQ(one.get().data(), own);
  EXPECT_EQ(two.get()[0], 1);
}

// What a score, its copies and a layer do with them.
TEST(SharedNumbers, AreThoseOfPolicies) {
  mha::AlibiSlopes slopes({0.5f, 0.25f});
  const auto before = slopes;
  slopes.numbers()[0] = 1;
  EXPECT_EQ(slopes.per_head()[0], 1);
  EXPECT_EQ(before.per_head()[0], 0.5f);
  mha::RelativeBias bias(std::vector<float>(8), {.count = 4, .max_distance = 9});
  const auto zero = bias;
  bias.numbers()[3] = 2;
  EXPECT_EQ(bias.table()[3], 2);
  EXPECT_EQ(zero.table()[3], 0);
  mha::Sink sink({1.f, 2.f});
  const auto old = sink;
  sink.numbers()[1] = 5;
  EXPECT_EQ(sink.per_head()[1], 5);
  EXPECT_EQ(old.per_head()[1], 2);
  mha::SoftCap cap{3.f};
  cap.numbers()[0] = 4;
  EXPECT_EQ(cap.cap, 4.f);
}

}  // namespace
