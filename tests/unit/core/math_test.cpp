// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/math.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

/// |y − exact| in units of the last place of exact.
template <class T> long double ulp_error(T y, long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const int lowest = std::numeric_limits<T>::min_exponent;
  const long double ulp = std::ldexp(1.0L, std::max(exponent, lowest) - std::numeric_limits<T>::digits);
  return std::abs(static_cast<long double>(y) - exact) / ulp;
}

template <class T> class Math : public testing::Test {
 protected:
  /// Arguments of every size, and many where results are ordinary.
  static std::vector<T> arguments() {
    support::Random random("math");
    std::vector<T> x;
    const double edge = std::is_same_v<T, float> ? 104 : 746;
    for (int i = 0; i < 200000; ++i) x.push_back(static_cast<T>(random.uniform(-edge, edge)));
    for (int i = 0; i < 200000; ++i) x.push_back(static_cast<T>(random.uniform(-2, 2)));
    for (int i = 0; i < 100000; ++i)
      x.push_back(static_cast<T>(std::ldexp(random.uniform(-1, 1), random.below(200) - 190)));
    return x;
  }
};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Math, Scalars);

TYPED_TEST(Math, ExpIsWithinItsStatedError) {
  using T = TypeParam;
  long double worst = 0;
  for (const T x : this->arguments()) {
    const long double exact = std::exp(static_cast<long double>(x));
    if (exact > static_cast<long double>(std::numeric_limits<T>::max())) {
      EXPECT_GE(mha::exp(x), std::numeric_limits<T>::max());
    } else {
      worst = support::maximum(worst, ulp_error(mha::exp(x), exact));
    }
  }
  EXPECT_LT(worst, 2);
  EXPECT_GT(worst, 0.3L) << "nothing was measured";
}

// Of every binary exponent, subnormal numbers among them, and close to 1 on both sides.
TYPED_TEST(Math, LogIsWithinItsStatedError) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  support::Random random("log");
  std::vector<T> arguments = this->arguments();
  for (int e = Limits::min_exponent - Limits::digits; e < Limits::max_exponent; ++e)
    for (int i = 0; i < 100; ++i) arguments.push_back(static_cast<T>(std::ldexp(random.uniform(1, 2), e)));
  for (int i = 0; i < 100000; ++i)
    arguments.push_back(static_cast<T>(1 + std::ldexp(random.uniform(-1, 1), -random.below(Limits::digits + 2))));
  long double worst = 0;
  for (const T x : arguments)
    if (x > T(0) && x <= Limits::max() && x != T(1))
      worst = support::maximum(worst, ulp_error(mha::log(x), std::log(static_cast<long double>(x))));
  EXPECT_LT(worst, 2);
  EXPECT_GT(worst, 0.3L) << "nothing was measured";
}

TYPED_TEST(Math, TanhIsWithinItsStatedError) {
  using T = TypeParam;
  long double worst = 0;
  for (const T x : this->arguments())
    worst = support::maximum(worst, ulp_error(mha::tanh(x), std::tanh(static_cast<long double>(x))));
  EXPECT_LT(worst, 3);
  EXPECT_GT(worst, 0.3L) << "nothing was measured";
}

TYPED_TEST(Math, ErfIsWithinItsStatedError) {
  using T = TypeParam;
  long double worst = 0;
  for (const T x : this->arguments())
    worst = support::maximum(worst, ulp_error(mha::erf(x), std::erf(static_cast<long double>(x))));
  EXPECT_LT(worst, 4);
  EXPECT_GT(worst, 0.3L) << "nothing was measured";
}

TYPED_TEST(Math, NormalCdfIsWithinItsStatedErrorInBothTails) {
  using T = TypeParam;
  support::Random random("cdf");
  auto arguments = this->arguments();
  for (int i = 0; i < 200000; ++i) arguments.push_back(static_cast<T>(random.uniform(-40, 10)));
  const auto least = static_cast<long double>(std::numeric_limits<T>::min());
  long double worst = 0;
  for (const T x : arguments) {
    const long double exact = std::erfc(-static_cast<long double>(x) / std::sqrt(2.0L)) / 2;
    if (exact >= least)
      worst = support::maximum(worst, ulp_error(mha::normal_cdf(x), exact));
    else
      ASSERT_LE(std::abs(static_cast<long double>(mha::normal_cdf(x)) - exact), exact * 1.0001L) << x;
  }
  EXPECT_LT(worst, 8);
  EXPECT_GT(worst, 0.3L) << "nothing was measured";
}

TYPED_TEST(Math, ExpOfTheUnusual) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(mha::exp(T(0)), T(1));
  EXPECT_EQ(mha::exp(T(-0.0)), T(1));
  EXPECT_EQ(mha::exp(Limits::infinity()), Limits::infinity());
  EXPECT_EQ(mha::exp(Limits::max()), Limits::infinity());
  for (const T x : {-Limits::infinity(), Limits::lowest(), T(-1e4)}) EXPECT_EQ(support::bits(mha::exp(x)), 0u) << x;
  EXPECT_TRUE(std::isnan(mha::exp(Limits::quiet_NaN())));
  EXPECT_TRUE(std::isnan(mha::exp(-Limits::quiet_NaN())));
  for (const T x : {Limits::denorm_min(), -Limits::denorm_min(), Limits::min()}) EXPECT_EQ(mha::exp(x), T(1));
}

TYPED_TEST(Math, LogOfTheUnusual) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(support::bits(mha::log(T(1))), 0u);
  for (const T x : {T(0), T(-0.0)}) EXPECT_EQ(mha::log(x), -Limits::infinity());
  EXPECT_EQ(mha::log(Limits::infinity()), Limits::infinity());
  for (const T x :
       {T(-1), -Limits::denorm_min(), Limits::lowest(), -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()})
    EXPECT_TRUE(std::isnan(mha::log(x))) << x;
}

TYPED_TEST(Math, TanhOfTheUnusual) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(support::bits(mha::tanh(T(0))), 0u);
  EXPECT_EQ(support::bits(mha::tanh(T(-0.0))), support::bits(T(-0.0)));
  EXPECT_EQ(mha::tanh(Limits::infinity()), T(1));
  EXPECT_EQ(mha::tanh(-Limits::infinity()), T(-1));
  EXPECT_EQ(mha::tanh(Limits::max()), T(1));
  EXPECT_EQ(mha::tanh(T(-30)), T(-1));
  EXPECT_TRUE(std::isnan(mha::tanh(Limits::quiet_NaN())));
  EXPECT_TRUE(std::isnan(mha::tanh(-Limits::quiet_NaN())));
  for (const T x : {Limits::denorm_min(), Limits::min(), T(1e-20)}) {
    EXPECT_EQ(mha::tanh(x), x);
    EXPECT_EQ(mha::tanh(-x), -x);
  }
}

TYPED_TEST(Math, ErfOfTheUnusual) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(support::bits(mha::erf(T(0))), 0u);
  EXPECT_EQ(support::bits(mha::erf(T(-0.0))), support::bits(T(-0.0)));
  for (const T x : {Limits::infinity(), Limits::max(), T(30)}) {
    EXPECT_EQ(mha::erf(x), T(1));
    EXPECT_EQ(mha::erf(-x), T(-1));
  }
  EXPECT_TRUE(std::isnan(mha::erf(Limits::quiet_NaN())));
  EXPECT_TRUE(std::isnan(mha::erf(-Limits::quiet_NaN())));
}

TYPED_TEST(Math, NormalCdfOfTheUnusual) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (const T x : {Limits::infinity(), Limits::max(), T(50)}) {
    EXPECT_EQ(mha::normal_cdf(x), T(1));
    EXPECT_EQ(support::bits(mha::normal_cdf(-x)), 0u);
  }
  for (const T x : {T(0), T(-0.0), Limits::denorm_min(), -Limits::denorm_min()})
    EXPECT_NEAR(mha::normal_cdf(x), T(0.5), 4 * Limits::epsilon());
  EXPECT_TRUE(std::isnan(mha::normal_cdf(Limits::quiet_NaN())));
  EXPECT_TRUE(std::isnan(mha::normal_cdf(-Limits::quiet_NaN())));
}

TYPED_TEST(Math, TanhAndErfAreOdd) {
  support::Random random("odd");
  for (int i = 0; i < 1000; ++i) {
    const auto x = static_cast<TypeParam>(random.uniform(-10, 10));
    EXPECT_EQ(mha::tanh(-x), -mha::tanh(x));
    EXPECT_EQ(mha::erf(-x), -mha::erf(x));
  }
}

TYPED_TEST(Math, TheLargerTheSmallerAndTheChosen) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(mha::max(T(2), -3), T(2));
  EXPECT_EQ(mha::max(T(-3), 2), T(2));
  EXPECT_EQ(mha::min(T(2), -3), T(-3));
  EXPECT_EQ(mha::min(-infinity, 2), -infinity);
  EXPECT_TRUE(std::isnan(mha::max(nan, 1)) && std::isnan(mha::min(nan, 1)));
  EXPECT_EQ(mha::max(T(1), nan), T(1));
  EXPECT_EQ(mha::min(T(1), nan), T(1));
  EXPECT_EQ(mha::select(true, T(1), nan), T(1));
  EXPECT_EQ(mha::select(false, nan, 2), T(2));
}

TEST(MathOfOthers, IsTheStandards) {
  EXPECT_EQ(mha::exp(1.5L), std::exp(1.5L));
  EXPECT_EQ(mha::tanh(1.5L), std::tanh(1.5L));
  EXPECT_EQ(mha::erf(1.5L), std::erf(1.5L));
  EXPECT_NEAR(static_cast<double>(mha::normal_cdf(-3.0L)), 0.0013498980316300945, 1e-17);
  EXPECT_EQ(mha::max(3, -4), 3);
  EXPECT_EQ(mha::min(3, -4), -4);
  EXPECT_EQ(mha::select(false, 3, -4), -4);
  EXPECT_EQ(mha::log(1.5L), std::log(1.5L));
  EXPECT_EQ(mha::sqrt(2.5f), std::sqrt(2.5f));
  EXPECT_EQ(mha::abs(-3), 3);
}

// As std:: has it: positions are integers, what is made of their distance is not.
TEST(MathOfOthers, OfAnIntegerIsADouble) {
  EXPECT_NEAR(mha::log(5), std::log(5.0), 1e-15);
  EXPECT_EQ(mha::sqrt(2), std::sqrt(2.0));
  EXPECT_NEAR(mha::exp(-1), std::exp(-1.0), 1e-15);
  EXPECT_NEAR(mha::tanh(-1), std::tanh(-1.0), 1e-15);
  EXPECT_NEAR(mha::erf(-1), std::erf(-1.0), 1e-15);
  EXPECT_NEAR(mha::normal_cdf(-1), std::erfc(std::sqrt(0.5)) / 2, 1e-15);
}

}  // namespace
