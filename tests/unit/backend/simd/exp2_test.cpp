// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/exp2.hpp>
#include <mha/backend/simd/vector.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;

/// x ← 2^x over an array, register by register.
template <class T> struct Exp2 {
  template <class Isa> MHA_ALWAYS_INLINE static void run(T* x, std::size_t n) {
    constexpr std::size_t width = simd::Vector<T, Isa>::width;
    for (std::size_t i = 0; i + width <= n; i += width) {
      simd::vector_t<T, Isa> v;
      simd::load(v, x + i);
      simd::exp2_in_place<T, Isa>(v);
      simd::store(x + i, v);
    }
  }
};

/// 2^x of every element at a level; the vector is padded to whole registers.
template <class Isa, class T> std::vector<T> exp2_of(std::vector<T> x) {
  const std::size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  Isa::template run<Exp2<T>>(x.data(), x.size());
  x.resize(n);
  return x;
}

template <class T> class Exp2InPlace : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Exp2InPlace, Scalars);

template <class T> constexpr T lowest = simd::Exp2Constants<T>::lowest;

TYPED_TEST(Exp2InPlace, IsWithinItsStatedError) {
  using T = TypeParam;
  support::Random random("exp2");
  std::vector<T> x;
  for (int i = 0; i < 200000; ++i) x.push_back(static_cast<T>(random.uniform(static_cast<double>(lowest<T>), 1)));
  for (int i = 0; i < 200000; ++i) x.push_back(static_cast<T>(random.uniform(-2, 1)));
  for (int i = -1000; i <= 0; ++i)  // ties of the rounding to an integer, and their neighbours
    for (const T side : {T(-1), T(0), T(1)}) x.push_back(std::nextafter(static_cast<T>(i / 8.0), side * T(2000)));
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>(x);
    long double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = std::exp2(static_cast<long double>(x[i]));
      if (x[i] < lowest<T>) continue;
      int exponent = 0;
      std::frexp(exact, &exponent);
      const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
      worst = support::maximum(worst, std::abs(static_cast<long double>(y[i]) - exact) / ulp);
    }
    EXPECT_LT(worst, 1.5L);
    EXPECT_GT(worst, 0.1L) << "nothing was measured";
  });
}

TYPED_TEST(Exp2InPlace, IsExactAtWholeNumbers) {
  using T = TypeParam;
  std::vector<T> x;
  for (int i = static_cast<int>(lowest<T>); i <= 1; ++i) x.push_back(static_cast<T>(i));
  x.push_back(T(-0.0));
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>(x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::ldexp(T(1), static_cast<int>(x[i]))) << x[i];
  });
}

TYPED_TEST(Exp2InPlace, IsExactlyZeroBelowTheNormalNumbers) {
  using T = TypeParam;
  const std::vector<T> x = {
      -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::lowest(), T(-1e9), T(-32768), T(-5000),
      std::nextafter(lowest<T>, T(-1e6))};
  unit::for_each_level([&]<class Isa>(Isa) {
    for (const T y : exp2_of<Isa>(x)) EXPECT_EQ(support::bits(y), 0u);
    EXPECT_EQ(exp2_of<Isa>(std::vector<T>{lowest<T>})[0], std::numeric_limits<T>::min());
  });
}

TYPED_TEST(Exp2InPlace, KeepsNaN) {
  using T = TypeParam;
  using Bits = support::Bits<T>;
  const Bits infinity = support::bits(std::numeric_limits<T>::infinity());
  std::vector<T> x;
  // Quiet and signalling, both signs, payloads in the lowest and the highest bits.
  for (int bit = 0; bit < std::numeric_limits<T>::digits - 1; ++bit)
    for (const Bits sign : {Bits(0), Bits(1) << (sizeof(T) * 8 - 1)})
      x.push_back(std::bit_cast<T>(static_cast<Bits>(sign | infinity | (Bits(1) << bit))));
  x.push_back(std::bit_cast<T>(static_cast<Bits>(~Bits(0))));
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>(x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(std::isnan(y[i])) << std::hex << support::bits(x[i]);
  });
}

TYPED_TEST(Exp2InPlace, GrowsWithItsArgument) {
  using T = TypeParam;
  std::vector<T> x;
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<T>(-3.0 + i * 3e-5));
  unit::for_each_level([&]<class Isa>(Isa) {
    const auto y = exp2_of<Isa>(x);
    for (std::size_t i = 1; i < y.size(); ++i)
      // Neighbours a few ulp apart may swap within the stated error, never by more.
      EXPECT_GE(y[i], y[i - 1] * (T(1) - 3 * std::numeric_limits<T>::epsilon())) << x[i];
  });
}

}  // namespace
