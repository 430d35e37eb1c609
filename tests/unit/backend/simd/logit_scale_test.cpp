// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include <mha/backend/simd/logit_scale.hpp>

namespace {

using mha::detail::simd::LogitScale;

/// What it asks of a call.
struct Call {
  struct Score {
    bool exists;
  } score;
  double scale;
};

TEST(LogitScale, IsOfDotProductsWhereTheyCannotGrow) {
  for (const double scale : {1e-30, 1e-3, 0.25, 1.}) {
    const LogitScale<double> dots(Call{{false}, scale}), logits(Call{{true}, scale});
    EXPECT_TRUE(dots.dots());
    EXPECT_EQ(dots.logit(3), 3 * scale);
    EXPECT_NEAR(std::exp2(2 * dots.slope()), std::exp(2 * scale), 1e-14 * std::exp(2 * scale));
    EXPECT_FALSE(logits.dots());
    EXPECT_EQ(logits.logit(3), 3);
  }
  for (const double scale : {-1., 0., 1e-31, 1.5}) {
    const LogitScale<double> logits(Call{{false}, scale});
    EXPECT_FALSE(logits.dots());
    EXPECT_EQ(logits.logit(3), 3);
    EXPECT_NEAR(std::exp2(2 * logits.slope()), std::exp(2.), 1e-14);
  }
}

TEST(LogitScale, ASinkIsRelativeToTheLevel) {
  EXPECT_NEAR(LogitScale<double>(Call{{false}, 0.5}).with_sink(4, 6, 2), 4 + std::exp(2 - 3.), 1e-15);
  EXPECT_NEAR(LogitScale<double>(Call{{true}, 0.5}).with_sink(4, 6, 2), 4 + std::exp(2 - 6.), 1e-15);
}

}  // namespace
