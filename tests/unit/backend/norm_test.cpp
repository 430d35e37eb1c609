// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/norm.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/core/dual.hpp>
#include <mha/core/tensor.hpp>

#include "random.hpp"

namespace {

using mha::Index;
using mha::NormCall;
using mha::Tensor;

/// A call on (B, L, E) with weights that differ from element to element.
struct Case {
  Tensor<double, 3> x, residual, y, sum;
  Tensor<double, 1> weight, bias;

  Case(Index batch, Index length, Index width, const char* name)
      : x(batch, length, width),
        residual(batch, length, width),
        y(batch, length, width),
        sum(batch, length, width),
        weight(width),
        bias(width) {
    support::Random random(name);
    for (auto* t : {&x, &residual}) random.fill(*t);
    random.fill(weight);
    random.fill(bias);
  }
  NormCall<double> call(bool centred, double eps) {
    return {std::as_const(x).view(), {}, y.view(), {}, weight.data(), bias.data(), eps, centred};
  }
  void run(const NormCall<double>& call) {
    mha::Workspace workspace;
    mha::detail::run_norm(mha::Reference{}, call, workspace);
  }
};

TEST(NormRows, AreTheFormula) {
  for (const bool centred : {false, true})
    for (const Index width : {1, 2, 37}) {
      Case c(2, 3, width, "the formula");
      auto call = c.call(centred, 1e-3);
      call.residual = std::as_const(c.residual).view();
      call.sum = c.sum.view();
      c.run(call);
      for (Index b = 0; b < 2; ++b)
        for (Index l = 0; l < 3; ++l) {
          long double mean = 0, square = 0;
          const auto z = [&](Index j) { return static_cast<long double>(c.x(b, l, j)) + c.residual(b, l, j); };
          if (centred)
            for (Index j = 0; j < width; ++j) mean += z(j) / width;
          for (Index j = 0; j < width; ++j) square += (z(j) - mean) * (z(j) - mean) / width;
          for (Index j = 0; j < width; ++j) {
            const long double n = (z(j) - mean) / std::sqrt(square + 1e-3L);
            EXPECT_NEAR(c.y(b, l, j), double(n * c.weight(j) + c.bias(j)), 1e-12) << centred << ' ' << width;
            EXPECT_EQ(c.sum(b, l, j), c.x(b, l, j) + c.residual(b, l, j));
          }
        }
    }
}

TEST(NormRows, EqualNumbersGiveTheBias) {
  Case c(1, 2, 7, "equal numbers");
  std::fill(c.x.begin(), c.x.end(), 0.1);
  c.run(c.call(true, 0));
  for (Index j = 0; j < 7; ++j) EXPECT_EQ(c.y(0, 1, j), c.bias(j));
  std::fill(c.x.begin(), c.x.end(), 0.0);
  c.run(c.call(false, 0));
  for (Index j = 0; j < 7; ++j) EXPECT_EQ(c.y(0, 1, j), c.bias(j));
}

// Rounded sums may have the variance of a row of equal numbers below 0.
TEST(NormRows, AVarianceIsNotNegative) {
  const auto inverse = [](double eps) {
    return mha::detail::moments_of_sums<double>(4, true, eps, 1., 2., 1 - 0x1p-50).inverse;
  };
  EXPECT_EQ(inverse(0.25), 2);
  EXPECT_EQ(inverse(0), 0);
}

TEST(NormRows, ARowFarFromZeroKeepsItsDigits) {
  Case c(1, 1, 50, "far from zero");
  Tensor<double, 3> near(1, 1, 50);
  for (Index j = 0; j < 50; ++j) {
    c.x(0, 0, j) = 0x1p40 + j % 7;  // exact
    near(0, 0, j) = j % 7;
  }
  c.run(c.call(true, 0));
  auto call = c.call(true, 0);
  Tensor<double, 3> expected(1, 1, 50);
  call.x = std::as_const(near).view();
  call.y = expected.view();
  c.run(call);
  for (Index j = 0; j < 50; ++j) EXPECT_NEAR(c.y(0, 0, j), expected(0, 0, j), 1e-14);
}

TEST(NormRows, DifferentiateThroughDualNumbers) {
  using Dual = mha::Dual<double>;
  const std::vector<double> numbers{0.5, -1.25, 2, 0.125};
  const auto norm = [&](double step) {
    Tensor<Dual, 3> x(1, 1, 4), y(1, 1, 4);
    Tensor<Dual, 1> weight(4), bias(4);
    for (Index j = 0; j < 4; ++j) {
      const double at = numbers[static_cast<std::size_t>(j)];
      x(0, 0, j) = j == 1 ? Dual::variable(at + step) : Dual(at);
      weight(j) = Dual(1.0 + j);
    }
    const NormCall<Dual> call{std::as_const(x).view(), {}, y.view(), {}, weight.data(), bias.data(), Dual(1e-3), true};
    mha::detail::run_serially(mha::detail::NormRows<Dual>(call));
    return y;
  };
  const auto at = norm(0), above = norm(1e-6), below = norm(-1e-6);
  for (Index j = 0; j < 4; ++j)
    EXPECT_NEAR(at(0, 0, j).derivative[0], (above(0, 0, j).value - below(0, 0, j).value) / 2e-6, 1e-6);
}

TEST(NormRows, AreARowEach) {
  Case c(3, 5, 11, "items");
  const mha::detail::NormRows<double> items(c.call(true, 0));
  EXPECT_EQ(items.rows, 15);
  EXPECT_EQ(items.columns, 1);
  EXPECT_EQ(items.cost, 11);
  static_assert(!mha::detail::Normalizes<mha::Reference, double>);
}

}  // namespace
