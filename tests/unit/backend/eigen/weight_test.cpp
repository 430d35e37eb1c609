// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <Eigen/Core>
#include <limits>

#include <gtest/gtest.h>

#include <mha/backend/eigen/weight.hpp>

#include "exact_activations.hpp"

namespace {

using mha::detail::eigen::Weight;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// In packets and what they leave over: lengths around those of packets, each element at every place.
TEST(Weight, IsThePowerWithinTwoUlp) {
  for (const float m : {0.f, 3.25f, -70.f}) {
    for (int length = 1; length <= 70; ++length) {
      Eigen::ArrayXf s(length);
      for (int i = 0; i < length; ++i) s[i] = m - 87.3f * float(i * 37 % 71) / 70;
      const Eigen::ArrayXf w = s.unaryExpr(Weight{m});
      for (int i = 0; i < length; ++i) {
        ASSERT_LE(support::ulp_error(w[i], std::exp((long double)(s[i] - m))), 2) << s[i] << " of " << m;
      }
      ASSERT_EQ(w[0], 1.f);  // s = m
    }
  }
}

TEST(Weight, OfAHiddenKeyIsZero) {
  Eigen::ArrayXf s = Eigen::ArrayXf::Constant(37, 2.f);
  for (int i = 0; i < 37; i += 3) s[i] = i % 2 == 0 ? -infinity : -1e9f;
  const Eigen::ArrayXf w = s.unaryExpr(Weight{2.f});
  for (int i = 0; i < 37; ++i) EXPECT_EQ(w[i], i % 3 == 0 ? 0.f : 1.f) << i;
}

TEST(Weight, OfNanIsNan) {
  for (int bad = 0; bad < 37; ++bad) {
    Eigen::ArrayXf s = Eigen::ArrayXf::Constant(37, 2.f);
    s[bad] = bad % 2 == 0 ? std::nanf("") : infinity;
    const float m = bad % 2 == 0 ? 2.f : infinity;
    const Eigen::ArrayXf w = s.unaryExpr(Weight{m});
    for (int i = 0; i < 37; ++i) EXPECT_EQ(std::isnan(w[i]), i == bad) << i;
  }
}

// Where the exponent runs out of normal numbers.
TEST(Weight, FadesToZero) {
  Eigen::ArrayXf s(2000);
  for (int i = 0; i < 2000; ++i) s[i] = -86.5f - 2.f * float(i) / 2000;
  const Eigen::ArrayXf w = s.unaryExpr(Weight{0.f});
  for (int i = 0; i < 2000; ++i) EXPECT_NEAR(w[i], std::exp(double(s[i])), std::numeric_limits<float>::min()) << s[i];
  EXPECT_EQ(w[1999], 0.f);
}

}  // namespace
