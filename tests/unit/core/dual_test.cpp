// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/dual.hpp>

namespace {

using mha::Dual;
using D = Dual<double>;

/// f on a dual number against f's central difference, f being any function of one variable.
template <class F> void expect_derivative(F f, double x) {
  const D y = f(D::variable(x));
  EXPECT_DOUBLE_EQ(y.value, f(x)) << "at " << x;
  const double step = 1e-5;
  const double slope = (f(x + step) - f(x - step)) / (2 * step);
  EXPECT_NEAR(y.derivative[0], slope, 1e-8 * (1 + std::abs(slope))) << "at " << x;
}

template <class F> void expect_derivatives(F f) {
  for (const double x : {0.3, 0.9, 1.7, 2.5}) expect_derivative(f, x);
}
template <class F> void expect_derivatives_everywhere(F f) {
  expect_derivatives(f);
  for (const double x : {-2.5, -1.1, -0.2}) expect_derivative(f, x);
}

TEST(Dual, DifferentiatesArithmetic) {
  expect_derivatives_everywhere([](auto x) { return -x; });
  expect_derivatives_everywhere([](auto x) { return x + x * x; });
  expect_derivatives_everywhere([](auto x) { return 3.0 - x; });
  expect_derivatives_everywhere([](auto x) { return x - 3.0; });
  expect_derivatives_everywhere([](auto x) { return 2 * x * x * x; });
  expect_derivatives_everywhere([](auto x) { return x / 4.f; });
  expect_derivatives_everywhere([](auto x) { return 1 / x; });
  expect_derivatives_everywhere([](auto x) { return (x * x - 1) / (x * x + 1); });
}

TEST(Dual, DifferentiatesAssignmentOperators) {
  expect_derivatives_everywhere([](auto x) {
    auto y = x;
    y *= x + 2;
    y -= x;
    y /= x * x + 1;
    y += x;
    return y;
  });
}

TEST(Dual, DifferentiatesTheMathsOfScores) {
  expect_derivatives_everywhere([](auto x) { return mha::exp(x); });
  expect_derivatives_everywhere([](auto x) { return mha::tanh(x); });
  expect_derivatives_everywhere([](auto x) { return mha::abs(x); });
  expect_derivatives_everywhere([](auto x) { return mha::erf(x); });
  expect_derivatives_everywhere([](auto x) { return mha::normal_cdf(x); });
  expect_derivatives_everywhere([](auto x) { return mha::max(x * x, 1) * mha::min(x, 2); });
  expect_derivatives_everywhere([](auto x) { return mha::select(x < decltype(x)(0.5), x * x, x); });
  expect_derivatives([](auto x) { return mha::log(x); });
  expect_derivatives([](auto x) { return mha::sqrt(x); });
}

TEST(Dual, DifferentiatesChainsOfFunctions) {
  expect_derivatives_everywhere([](auto x) { return 30 * mha::tanh(x / 30.0); });
  expect_derivatives_everywhere([](auto x) { return mha::log(1 + mha::exp(x)); });
  expect_derivatives([](auto x) { return mha::exp(-mha::sqrt(x) * mha::abs(x - 5)) / mha::log(x + 1); });
  expect_derivatives([](auto x) {
    using mha::exp;
    using mha::tanh;
    auto y = x;
    for (int i = 0; i < 4; ++i) y = tanh(y) * exp(x / (1 + i));
    return y;
  });
}

TEST(Dual, KeepsSeveralVariablesApart) {
  using D3 = Dual<double, 3>;
  const auto f = [](auto a, auto b, auto c) { return a * b / c + mha::exp(a - c); };
  const double at[3] = {0.7, -1.3, 2.1};
  const D3 y = f(D3::variable(at[0], 0), D3::variable(at[1], 1), D3::variable(at[2], 2));
  EXPECT_DOUBLE_EQ(y.value, f(at[0], at[1], at[2]));
  EXPECT_NEAR(y.derivative[0], at[1] / at[2] + std::exp(at[0] - at[2]), 1e-14);
  EXPECT_NEAR(y.derivative[1], at[0] / at[2], 1e-14);
  EXPECT_NEAR(y.derivative[2], -at[0] * at[1] / (at[2] * at[2]) - std::exp(at[0] - at[2]), 1e-14);
}

TEST(Dual, NumbersConvertToItAndItConvertsToNone) {
  static_assert(std::is_convertible_v<int, D> && std::is_convertible_v<float, D>);
  static_assert(!std::is_convertible_v<D, double> && !std::is_constructible_v<double, D>);
  static_assert(!std::is_constructible_v<bool, D> && !std::is_constructible_v<float, D>);
  const D c = 3;
  EXPECT_EQ(c.value, 3);
  EXPECT_EQ(c.derivative[0], 0);
  constexpr auto square = D::variable(3) * D::variable(3);
  static_assert(square.value == 9 && square.derivative[0] == 6);
}

TEST(Dual, ComparesByValue) {
  const D one = D::variable(1), two(2);
  EXPECT_TRUE(one < two && one <= two && two > one && two >= one);
  EXPECT_TRUE(one == D(1) && one != two && one == 1.0 && !(two < 1));
  const D nan = std::numeric_limits<D>::quiet_NaN();
  EXPECT_FALSE(nan < one || nan > one || nan == nan);
}

TEST(Dual, HasTheLimitsOfItsValue) {
  using Limits = std::numeric_limits<D>;
  static_assert(Limits::has_infinity && Limits::digits == std::numeric_limits<double>::digits);
  EXPECT_TRUE(Limits::infinity() > Limits::max());
  EXPECT_EQ(Limits::lowest().value, std::numeric_limits<double>::lowest());
  EXPECT_EQ(Limits::epsilon().value, std::numeric_limits<double>::epsilon());
  EXPECT_EQ(Limits::min().value, std::numeric_limits<double>::min());
  EXPECT_TRUE(std::isnan(Limits::quiet_NaN().value));
  EXPECT_EQ((-Limits::infinity()).derivative[0], 0);
}

TEST(Maths, OfNumbersIsThatOfTheStandardLibrary) {
  EXPECT_EQ(mha::exp(0.5f), std::exp(0.5f));
  EXPECT_NEAR(mha::log(0.5), std::log(0.5), 1e-15);
  EXPECT_EQ(mha::tanh(0.5L), std::tanh(0.5L));
  EXPECT_EQ(mha::sqrt(2.f), std::sqrt(2.f));
  static_assert(mha::abs(-3) == 3 && mha::abs(2.5) == 2.5);
  static_assert(std::is_same_v<decltype(mha::exp(1.f)), float> && std::is_same_v<decltype(mha::abs(1)), int>);
}

}  // namespace
