// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/row_norm.hpp>
#include <mha/mha.hpp>

namespace {

TEST(RowNorm, NormsWithoutABackwardPass) {
  const mha::detail::RowNorm<double, mha::Reference, mha::detail::RootMeanSquare> norm({.width = 2, .eps = 0});
  mha::Tensor<double, 2> x(1, 2);
  x(0, 0) = 3;
  x(0, 1) = -3;
  const auto y = norm(x);
  EXPECT_EQ(y(0, 0), 1);
  EXPECT_EQ(y(0, 1), -1);
}

TEST(RowNorm, ItsConfigurationIsCompletedByItsKind) {
  const auto c = mha::detail::completed_norm("LayerNorm", {.width = 3}, mha::detail::Centred::eps, true);
  EXPECT_EQ(*c.eps, 1e-5);
  EXPECT_TRUE(*c.bias);
}

}  // namespace
