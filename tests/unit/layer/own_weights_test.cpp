// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/layer/own_weights.hpp>

namespace {

using Own = mha::detail::OwnWeights<float>;

TEST(OwnWeights, AreNoneOrZeroAtFirst) {
  const Own none, three(3);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.view().extent[0], 0);
  EXPECT_EQ(none.owner(), nullptr);
  EXPECT_EQ(three.size(), 3u);
  EXPECT_EQ(three.view()(2), 0);
}

TEST(OwnWeights, ACopyHasMemoryOfItsOwnAndAMoveLeavesNothing) {
  static_assert(std::is_nothrow_move_constructible_v<Own> && std::is_nothrow_move_assignable_v<Own>);
  static_assert(!std::is_nothrow_copy_assignable_v<Own>);
  Own a(2);
  a.writable()[1] = 5;
  Own b = a;
  b.writable()[1] = 6;
  EXPECT_EQ(a.data()[1], 5);
  b = a;
  EXPECT_NE(b.data(), a.data());
  EXPECT_EQ(b.data()[1], 5);
  const float* const memory = a.data();
  const Own c = std::move(a);
  EXPECT_EQ(c.data(), memory);
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(a.data(), nullptr);
}

TEST(OwnWeights, AreWrittenInPlaceUnlessAnotherHoldsThem) {
  Own a(2);
  const float* const memory = a.data();
  a.writable()[0] = 1;
  EXPECT_EQ(a.data(), memory);
  auto owner = std::as_const(a).owner();
  a.writable()[0] = 2;
  EXPECT_NE(a.data(), memory);
  EXPECT_EQ(memory[0], 1) << "as they were";
  const float* const now = a.data();
  owner = a.owner();
  owner.reset();
  a.writable()[1] = 3;
  EXPECT_EQ(a.data(), now);
}

TEST(OwnWeights, OutliveThemselvesWhileTheyAreHeld) {
  auto a = std::make_unique<Own>(1);
  a->writable()[0] = 4;
  const float* const memory = a->data();
  const auto owner = a->owner();
  a.reset();
  EXPECT_EQ(*memory, 4);
}

}  // namespace
