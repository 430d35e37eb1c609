// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/policy/score/softcap.hpp>

#include "../finite_difference.hpp"
#include "scratch.hpp"

namespace {

using mha::SoftCap;

TEST(SoftCap, IsTheFormula) {
  for (const float cap : {0.5f, 30.f, 50.f})
    for (double s = -200; s <= 200; s += 3.7) {
      const double expected = cap * std::tanh(s / cap);
      EXPECT_NEAR(SoftCap{cap}(s, 0, 0, 0, 0), expected, 1e-13 * cap);
      EXPECT_NEAR(SoftCap{cap}(static_cast<float>(s), 0, 0, 0, 0), expected, 2e-6 * cap);
    }
}

TEST(SoftCap, StaysInsideTheCap) {
  for (const float s : {-1e38f, -1e4f, 1e4f, 1e38f}) EXPECT_LE(std::abs((SoftCap{30.f}(s, 0, 0, 0, 0))), 30.f);
  EXPECT_EQ((SoftCap{30.f}(0.f, 0, 0, 0, 0)), 0.f);
}

TEST(SoftCap, IsTheSameEverywhere) { EXPECT_EQ((SoftCap{3.f}(1.5f, 1, 2, 3, 4)), (SoftCap{3.f}(1.5f, 0, 0, 0, 0))); }

TEST(SoftCap, AgreesWithFiniteDifferences) {
  mha_test::expect_derivatives(SoftCap{30.f});
  mha_test::expect_derivatives(SoftCap{1.f});
}

TEST(SoftCap, WantsAPositiveFiniteCap) {
  const auto message = [](float cap) {
    return mha_test::message_of<mha::ShapeError>([&] { SoftCap{cap}.prepared({}); });
  };
  EXPECT_EQ(message(0.f), "SoftCap: cap is 0, it must be a positive finite number");
  EXPECT_EQ(message(-2.f), "SoftCap: cap is -2, it must be a positive finite number");
  EXPECT_NE(message(std::numeric_limits<float>::infinity()), "");
  EXPECT_NE(message(std::numeric_limits<float>::quiet_NaN()), "");
  EXPECT_EQ(message(30.f), "");
  EXPECT_EQ(message(0x1p-130f), "SoftCap: cap is 7.34683969e-40, which is too small: 1 / cap is ∞");
  EXPECT_EQ(message(std::numeric_limits<float>::min()), "");
}

TEST(SoftCap, HasNoDefault) {
  static_assert(!std::is_default_constructible_v<SoftCap> && std::is_trivially_copyable_v<SoftCap>);
  static_assert(mha::Score<SoftCap> && !mha::Borrows<SoftCap>);
  EXPECT_EQ((SoftCap{.cap = 50}.cap.value), 50.f);
}

}  // namespace
