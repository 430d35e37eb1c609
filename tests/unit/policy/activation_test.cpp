// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/policy/activation.hpp>

#include "compare.hpp"
#include "exact_activations.hpp"
#include "random.hpp"

namespace {

using support::gelu;
using support::gelu_tanh;
using support::silu;
using support::tanh_argument;
using support::ulp_error;

template <class T> class Activations : public testing::Test {
 protected:
  static constexpr bool is_float = std::is_same_v<T, float>;

  /// The largest error of f from `exact` in units of `allowed(x)` ulp, over numbers of every size above `low`.
  template <class F, class Exact, class Allowed>
  static long double worst(F f, Exact exact, double low, Allowed allowed) {
    support::Random random("activation");
    long double worst = 0;
    for (int i = 0; i < 200000; ++i) {
      const double size = i % 3 == 0 ? std::ldexp(1, -random.below(100)) : 1;
      const T x = static_cast<T>(random.uniform(low, 14) * size);
      const auto y = static_cast<long double>(x);
      worst = support::maximum(worst, ulp_error(f(x), exact(y)) / allowed(y));
    }
    return worst;
  }
};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Activations, Scalars);

TYPED_TEST(Activations, AreWithinTheirStatedErrors) {
  using Suite = Activations<TypeParam>;
  const double normal_cdf_end = Suite::is_float ? -12.5 : -37, exp_end = Suite::is_float ? -87 : -708;
  const auto seven = [](long double) { return 7.0L; };
  const auto four = [](long double) { return 4.0L; };
  const auto of_tanh = [](long double x) { return 8 + 10 * std::abs(tanh_argument(x)); };
  for (const long double worst : {Suite::worst(mha::Gelu{}, gelu, normal_cdf_end, seven),
                                  Suite::worst(mha::GeluTanh{}, gelu_tanh, Suite::is_float ? -9 : -20, of_tanh),
                                  Suite::worst(mha::Silu{}, silu, exp_end, four)}) {
    EXPECT_LT(worst, 1);
    EXPECT_GT(worst, 0.03L) << "nothing was measured";
  }
}

TYPED_TEST(Activations, FactorsBelowNormalNumbersCountAsZero) {
  using T = TypeParam;
  support::Random random("subnormal");
  const auto least = static_cast<long double>(std::numeric_limits<T>::min());
  for (int i = 0; i < 20000; ++i) {
    const T a = static_cast<T>(random.uniform(-45, -12)), b = static_cast<T>(random.uniform(-800, -80));
    const auto x = static_cast<long double>(a), y = static_cast<long double>(b);
    if (gelu(x) / x < least) {
      EXPECT_LE(std::abs(static_cast<long double>(mha::Gelu{}(a)) - gelu(x)), -x * least) << a;
    }
    if (silu(y) / y < least) {
      EXPECT_LE(std::abs(static_cast<long double>(mha::Silu{}(b)) - silu(y)), -y * least) << b;
    }
  }
}

template <class F> void expect_edges(F f) {
  using T = std::decay_t<decltype(f(0))>;
  using Limits = std::numeric_limits<T>;
  for (const T x : {-Limits::infinity(), Limits::lowest(), T(-1e6)}) {
    EXPECT_EQ(f(x), T(0)) << x;
    EXPECT_FALSE(std::isnan(f(x))) << x;
  }
  for (const T x : {Limits::infinity(), Limits::max(), T(1e6)}) EXPECT_EQ(f(x), x);
  EXPECT_TRUE(std::isnan(f(Limits::quiet_NaN())));
  EXPECT_TRUE(std::isnan(f(-Limits::quiet_NaN())));
  EXPECT_EQ(f(T(0)), T(0));
  EXPECT_EQ(f(T(-0.0)), T(0));
}

TYPED_TEST(Activations, AreRightAtTheEdges) {
  using T = TypeParam;
  expect_edges([](T x) { return mha::Relu{}(x); });
  expect_edges([](T x) { return mha::Gelu{}(x); });
  expect_edges([](T x) { return mha::GeluTanh{}(x); });
  expect_edges([](T x) { return mha::Silu{}(x); });
}

TYPED_TEST(Activations, ReluIsExact) {
  using T = TypeParam;
  support::Random random("relu");
  for (int i = 0; i < 1000; ++i) {
    const auto x = static_cast<T>(random.uniform(-3, 3));
    EXPECT_EQ(mha::Relu{}(x), x > 0 ? x : T(0));
  }
}

/// Within 2⁻¹⁴ of the exact result for numbers of every size from `low` up.
template <class F, class Exact> void expect_error_for_bfloat16(F activation, Exact exact, double low) {
  SCOPED_TRACE(F::name);
  const auto f = [&](float x) { return activation.for_bfloat16(x); };
  expect_edges(f);
  support::Random random("for bfloat16");
  long double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const double size = i % 3 == 0 ? std::ldexp(1, -random.below(100)) : 1;
    const auto x = static_cast<float>(random.uniform(low, 14) * size);
    const long double wanted = exact(static_cast<long double>(x));
    worst = support::maximum(worst, std::abs(static_cast<long double>(f(x)) - wanted) / std::abs(wanted));
  }
  EXPECT_LT(worst, std::ldexp(1.0L, -14));
  EXPECT_GT(worst, std::ldexp(1.0L, -19)) << "nothing was measured";
}

TEST(Activation, ForBfloat16IsWithinItsStatedError) {
  expect_error_for_bfloat16(mha::Gelu{}, gelu, -12.5);
  expect_error_for_bfloat16(mha::GeluTanh{}, gelu_tanh, -9.9);
  expect_error_for_bfloat16(mha::Silu{}, silu, -87);
}

template <class F> void expect_derivatives(F f) {
  support::Random random("slopes");
  for (int i = 0; i < 200; ++i) {
    const double x = random.uniform(0.001, 6) * (i % 2 == 0 ? 1 : -1), step = 1e-4 * std::abs(x);
    const auto dual = f(mha::Dual<double>::variable(x));
    EXPECT_NEAR(dual.value, f(x), 1e-15 * std::abs(f(x)));
    EXPECT_NEAR(dual.derivative[0], (f(x + step) - f(x - step)) / (2 * step), 1e-6) << x;
  }
}

TEST(Activation, IsDifferentiatedByDualNumbers) {
  expect_derivatives(mha::Identity{});
  expect_derivatives(mha::Relu{});
  expect_derivatives(mha::Gelu{});
  expect_derivatives(mha::GeluTanh{});
  expect_derivatives(mha::Silu{});
}

// Outputs of PyTorch 2's nn.GELU(), nn.GELU(approximate="tanh") and nn.SiLU() in double.
TEST(Activation, IsWhatOthersCallIt) {
  EXPECT_NEAR(mha::Gelu{}(1.0), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(mha::Gelu{}(-1.0), -0.15865525393145707, 1e-15);
  EXPECT_NEAR(mha::GeluTanh{}(1.0), 0.8411919906082768, 1e-15);
  EXPECT_NEAR(mha::GeluTanh{}(-1.0), -0.15880800939172324, 1e-15);
  EXPECT_NEAR(mha::Silu{}(1.0), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(mha::Silu{}(-1.0), -0.2689414213699951, 1e-15);
}

TEST(Activation, IdentityChangesNoBit) {
  EXPECT_EQ(mha::Identity{}(-0.25), -0.25);
  EXPECT_EQ(mha::Identity{}(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
}

struct OfFloat {
  float operator()(float x) const { return x * x; }
};
struct OfTwo {
  float operator()(float x, float y) const { return x + y; }
};
struct ToBool {
  template <class S> bool operator()(const S& x) const { return x > S(0); }
};
struct Mutable {
  float operator()(float x) { return x; }
};
struct Changing {
  float operator()(float& x) const { return x *= 2; }
  double operator()(double& x) const { return x *= 2; }
};
struct ToIntOfFloat {
  int operator()(float x) const { return x > 0 ? 1 : 0; }
  double operator()(double x) const { return x; }
};
struct ToIntOfDouble {
  float operator()(float x) const { return x; }
  int operator()(double x) const { return x > 0 ? 1 : 0; }
};

TEST(Activation, IsAFunctionOfOneNumberOrAPair) {
  static_assert(mha::Activation<mha::Identity> && mha::Activation<mha::Gelu> && mha::Activation<OfFloat>);
  static_assert(mha::Activation<mha::SwiGlu> && mha::Activation<mha::GeGlu> && mha::Activation<mha::Gated<OfFloat>>);
  static_assert(!mha::Activation<OfTwo> && !mha::Activation<ToBool> && !mha::Activation<Mutable>);
  EXPECT_FALSE(mha::Activation<Changing>);
  EXPECT_FALSE(mha::Activation<ToIntOfFloat>);
  EXPECT_FALSE(mha::Activation<ToIntOfDouble>);
  static_assert(!mha::Activation<float> && !mha::detail::NumberFunctor<mha::SwiGlu>);
  const auto lambda = [](auto x) { return x * mha::tanh(x); };
  static_assert(mha::Activation<decltype(lambda)>);
  static_assert(mha::detail::check_activation<mha::Relu>());
}

TEST(Activation, APairIsToldByItsType) {
  static_assert(mha::detail::is_gated<mha::Gated<mha::Identity>> && !mha::detail::is_gated<mha::Identity>);
}

}  // namespace
