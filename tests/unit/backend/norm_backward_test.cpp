// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include <mha/backend/norm_backward.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

/// Rows beyond one block, and a row without a gradient.
void expect_formula(bool centred) {
  constexpr Index rows = 2 * mha::detail::norm_block + 3, width = 5;
  constexpr double eps = 0.01;
  support::Random random("norm backward");
  mha::Tensor<double, 2> z(rows, width), dy(rows, width), dz(rows, width);
  mha::Tensor<double, 1> weight(width), d_weight(width), d_bias(width);
  for (auto* t : {&z, &dy}) random.fill(*t);
  for (auto* t : {&weight, &d_weight, &d_bias}) random.fill(*t);
  for (Index j = 0; j < width; ++j) dy(70, j) = 0;
  support::poison_all(dz);
  const auto before_weight = d_weight, before_bias = d_bias;
  const auto read = [](const mha::Tensor<double, 2>& t) { return t.view(); };
  mha::Workspace workspace;
  mha::detail::run_norm_backward(mha::Reference{},
                                 mha::NormBackwardCall<double>{read(z), read(dy), dz.view(), weight.data(),
                                                               d_weight.data(), d_bias.data(), eps, centred},
                                 workspace);
  mha::Tensor<double, 1> w = before_weight, b = before_bias;
  for (Index i = 0; i < rows; ++i) {
    double mean = 0, square = 0, level = 0, along = 0, n[width];
    for (Index j = 0; j < width; ++j) mean += centred ? z(i, j) / width : 0;
    for (Index j = 0; j < width; ++j) square += (z(i, j) - mean) * (z(i, j) - mean) / width;
    const double inverse = 1 / std::sqrt(square + eps);
    for (Index j = 0; j < width; ++j) {
      n[j] = (z(i, j) - mean) * inverse;
      w(j) += dy(i, j) * n[j];
      b(j) += dy(i, j);
      level += centred ? dy(i, j) * weight(j) / width : 0;
      along += dy(i, j) * weight(j) * n[j] / width;
    }
    for (Index j = 0; j < width; ++j)
      EXPECT_NEAR(dz(i, j), (dy(i, j) * weight(j) - level - n[j] * along) * inverse, 1e-12);
  }
  for (Index j = 0; j < width; ++j) {
    EXPECT_NEAR(d_weight(j), w(j), 1e-11);
    EXPECT_NEAR(d_bias(j), b(j), 1e-11);
  }
}

TEST(NormBackwardItems, AreTheFormula) {
  expect_formula(true);
  expect_formula(false);
}

TEST(NormWeightTerm, IsNothingOfARowWithoutAGradient) {
  mha::Tensor<double, 2> z(2, 3), dy(2, 3);
  support::Random random("norm weight term");
  random.fill(z), random.fill(dy);
  for (Index j = 0; j < 3; ++j) z(1, j) = std::nan("");
  const mha::NormRowFacts<double> facts[] = {{{0.5, 0.25, 2}, 1}, {{0, 0, 0}, 0}};
  const mha::detail::NormWeightTerm<double> term{std::as_const(z).view(), std::as_const(dy).view(), facts};
  for (Index j = 0; j < 3; ++j) {
    EXPECT_EQ(term(0, j), dy(0, j) * ((z(0, j) - 0.5 - 0.25) * 2));
    EXPECT_EQ(term(1, j), 0);
  }
}

}  // namespace
