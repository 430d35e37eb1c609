// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backward_pass.hpp>
#include <mha/mha.hpp>

namespace {

TEST(CountParts, CountsTheScoresOfAChain) {
  using Two = mha::Chain<mha::SoftCap, mha::NoScore>;
  static_assert(mha::detail::count_parts<mha::Causal> == 1);
  static_assert(mha::detail::count_parts<Two> == 2);
  static_assert(mha::detail::count_parts<mha::Chain<Two, Two>> == 4);
}

TEST(SinkItems, WriteTheSumsOrAddThem) {
  const double sums[] = {0.5, -2};
  mha::Tensor<float, 1> to(2);
  to(0) = 1, to(1) = 2;
  mha::detail::run_serially(mha::detail::SinkItems<double, float>{2, 1, 1, sums, to.view(), true});
  EXPECT_EQ(to(0), 1.5f);
  EXPECT_EQ(to(1), 0.f);
  mha::detail::run_serially(mha::detail::SinkItems<double, float>{2, 1, 1, sums, to.view(), false});
  EXPECT_EQ(to(0), 0.5f);
  EXPECT_EQ(to(1), -2.f);
}

}  // namespace
