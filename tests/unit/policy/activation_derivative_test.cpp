// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <mha/policy/activation_derivative.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::detail::derivative_at;

// The formulas in long double.
long double gelu(long double x) {
  return std::erfc(-x / std::sqrt(2.0L)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0L));
}
long double logistic_slope(long double u, long double x_slope) {
  const long double s = 1 / (1 + std::exp(-u));
  return s + x_slope * s / (1 + std::exp(u));
}
long double gelu_tanh(long double x) {
  const long double slope = 2 * std::sqrt(2 / std::acos(-1.0L)), cubic = slope * 0.044715L;
  return logistic_slope(x * (slope + cubic * x * x), x * (slope + 3 * cubic * x * x));
}
long double silu(long double x) { return logistic_slope(x, x); }

template <class T> class ActivationDerivatives : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationDerivatives, Scalars);

/// The largest error from `exact`, in units of 1.
template <class T, class F, class Exact> double worst(const F& f, const Exact& exact) {
  support::Random random("activation derivatives");
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double size = i % 3 == 0 ? std::ldexp(1, -random.below(60)) : i % 3 == 1 ? 0.25 : 1;
    const T x = static_cast<T>(random.uniform(-20, 20) * size);
    const auto error = std::abs(static_cast<long double>(derivative_at(f, x)) - exact(static_cast<long double>(x)));
    worst =
        support::maximum(worst, static_cast<double>(error) / static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
  return worst;
}

TYPED_TEST(ActivationDerivatives, AreWithinTheirStatedErrors) {
  EXPECT_LT(worst<TypeParam>(mha::Gelu{}, gelu), 2);
  EXPECT_LT(worst<TypeParam>(mha::GeluTanh{}, gelu_tanh), 8);
  EXPECT_LT(worst<TypeParam>(mha::Silu{}, silu), 3);
}

/// Its operator() hides that of the base, whose derivative would be half of its own.
struct TwiceGelu : mha::Gelu {
  template <class S> S operator()(const S& x) const { return S(2) * mha::Gelu::operator()(x); }
};
struct RenamedGelu : mha::Gelu {};

TYPED_TEST(ActivationDerivatives, OfAFunctorAreNotThoseThatItInherits) {
  const TypeParam x = static_cast<TypeParam>(0.7);
  EXPECT_FALSE(mha::detail::HasDerivative<TwiceGelu>);
  EXPECT_TRUE(mha::detail::HasDerivative<RenamedGelu>) << "of which nothing is its own";
  EXPECT_NEAR(static_cast<double>(derivative_at(TwiceGelu{}, x)), 2 * static_cast<double>(gelu(0.7L)), 1e-6);
}

TYPED_TEST(ActivationDerivatives, AreRightAtTheirEnds) {
  using T = TypeParam;
  constexpr T infinity = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto expect = [&](const auto& f, double at_0) {
    EXPECT_EQ(derivative_at(f, -infinity), 0);
    EXPECT_EQ(derivative_at(f, infinity), 1);
    EXPECT_EQ(derivative_at(f, -std::numeric_limits<T>::max()), 0);
    EXPECT_EQ(derivative_at(f, std::numeric_limits<T>::max()), 1);
    EXPECT_EQ(derivative_at(f, T(0)), static_cast<T>(at_0));
    EXPECT_EQ(derivative_at(f, T(-0.)), static_cast<T>(at_0));
  };
  expect(mha::Relu{}, 0);
  expect(mha::Gelu{}, 0.5);
  expect(mha::GeluTanh{}, 0.5);
  expect(mha::Silu{}, 0.5);
  EXPECT_TRUE(std::isnan(derivative_at(mha::Gelu{}, nan)));
  EXPECT_TRUE(std::isnan(derivative_at(mha::GeluTanh{}, nan)));
  EXPECT_TRUE(std::isnan(derivative_at(mha::Silu{}, nan)));
  EXPECT_EQ(derivative_at(mha::Identity{}, T(3)), 1);
  EXPECT_EQ(derivative_at(mha::Relu{}, T(0.25)), 1);
  EXPECT_EQ(derivative_at(mha::Relu{}, T(-0.25)), 0);
}

TEST(ActivationDerivatives, OfOtherScalarsAreTheSameFormulas) {
  using D = mha::Dual<double>;
  support::Random random("other scalars");
  for (int i = 0; i < 1000; ++i) {
    const double x = random.uniform(-12, 12);
    const auto expect = [&](const auto& f) {
      EXPECT_NEAR(f.derivative(D(x)).value, f.derivative(x), 1e-14);
      // By dual numbers, as those of a user's functor.
      EXPECT_NEAR(f(D::variable(x)).derivative[0], f.derivative(x), 1e-13);
    };
    expect(mha::Relu{});
    expect(mha::Gelu{});
    expect(mha::GeluTanh{});
    expect(mha::Silu{});
  }
}

struct Squared {
  template <class S> S operator()(const S& x) const { return mha::max(x, 0) * mha::max(x, 0); }
};
struct OfNumbers {
  double operator()(double x) const { return x * x; }
};
struct WithDerivative : OfNumbers {
  double derivative(double x) const { return 7 * x; }
};

TEST(ActivationDerivatives, AreThoseOfDualNumbersOrTheFunctorsOwn) {
  EXPECT_EQ(derivative_at(Squared{}, 3.f), 6);
  EXPECT_EQ(derivative_at(WithDerivative{}, 3.), 21);
  static_assert(mha::detail::is_differentiable<Squared> && mha::detail::is_differentiable<WithDerivative>);
  static_assert(mha::detail::is_differentiable<mha::Gated<Squared>> && mha::detail::is_differentiable<mha::SwiGlu>);
  static_assert(!mha::detail::is_differentiable<OfNumbers> && !mha::detail::is_differentiable<mha::Gated<OfNumbers>>);
}

TEST(GradientTimes, IsExactly0WhereTheGradientIs) {
  EXPECT_EQ(mha::detail::gradient_times(0.f, std::numeric_limits<float>::quiet_NaN()), 0);
  EXPECT_EQ(mha::detail::gradient_times(2.f, 3.f), 6);
  EXPECT_TRUE(std::isnan(mha::detail::gradient_times(2., std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace
