// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/layer/policies.hpp>
#include <mha/policy/dropout.hpp>
#include <mha/policy/heads.hpp>
#include <mha/policy/mask/positional.hpp>

namespace {

using mha::detail::PoliciesByRole;
using Plain = PoliciesByRole<>;
using Windowed = PoliciesByRole<mha::SlidingWindow, mha::Dropout, mha::MultiQuery>;

TEST(LayerPolicies, HaveADefaultForEveryRole) {
  static_assert(std::is_same_v<Plain::Heads, mha::MultiHead> && std::is_same_v<Plain::Mask, mha::Full>);
  static_assert(std::is_same_v<Plain::Score, mha::NoScore> && std::is_same_v<Plain::Sink, mha::NoSink>);
  static_assert(std::is_same_v<Plain::Norm, mha::NoNorm> && std::is_same_v<Plain::Position, mha::NoPosition>);
  static_assert(std::is_same_v<Plain::Projection, mha::FusedProjection>);
  static_assert(std::is_same_v<Plain::Concat, mha::ConcatHeads> && std::is_same_v<Plain::Output, mha::LinearOutput>);
  static_assert(std::is_same_v<Windowed::Heads, mha::MultiQuery>);
}

TEST(LayerPolicies, AreOneTypeInAnyOrder) {
  static_assert(std::is_same_v<PoliciesByRole<mha::MultiQuery, mha::Dropout, mha::SlidingWindow>, Windowed>);
  static_assert(!std::is_same_v<PoliciesByRole<mha::Dropout, mha::SlidingWindow>, Windowed>);
}

TEST(LayerPolicies, TakeTheirValuesInAnyOrder) {
  const auto policies = Windowed::from(mha::Dropout{.p = 0.5f}, mha::SlidingWindow{.left = 3});
  EXPECT_EQ(policies.dropout.p, 0.5f);
  EXPECT_TRUE(policies.mask(0, 0, 5, 2));
  EXPECT_FALSE(policies.mask(0, 0, 5, 1));
}

}  // namespace
