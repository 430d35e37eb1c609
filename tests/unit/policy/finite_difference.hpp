// SPDX-License-Identifier: Apache-2.0
// A score's derivative by dual numbers against its central difference.
#pragma once

#include <cmath>

#include <gtest/gtest.h>

#include <mha/policy/score.hpp>

namespace mha_test {

template <class S> void expect_derivative(const S& score, double logit, int b, int h, int q, int k) {
  const auto dual = mha::differentiate(score, logit, b, h, q, k);
  EXPECT_DOUBLE_EQ(dual.value, score(logit, b, h, q, k)) << logit;
  const double step = 1e-5 * (1 + std::abs(logit));
  const double slope = (score(logit + step, b, h, q, k) - score(logit - step, b, h, q, k)) / (2 * step);
  EXPECT_NEAR(dual.derivative[0], slope, 1e-7 * (1 + std::abs(slope))) << logit;
}

template <class S> void expect_derivatives(const S& score) {
  for (const double logit : {-70.0, -3.0, -0.5, 0.0, 0.25, 2.0, 45.0})
    for (int k = 0; k < 3; ++k) expect_derivative(score, logit, 0, 1, 2, k);
}

}  // namespace mha_test
