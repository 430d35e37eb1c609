// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float from_word(std::uint32_t w) { return std::bit_cast<float>(w); }

/// What a 16-bit format is: its significant bits, the exponent of its least normal number, its largest number.
template <class T> struct Format;
template <> struct Format<mha::half> {
  static constexpr int digits = 11, min_exponent = -14, bias = 15;
  static constexpr double largest = 65504;
  static constexpr unsigned quiet = 0x0200, exponent_mask = 0x7c00;
};
template <> struct Format<mha::bfloat16> {
  static constexpr int digits = 8, min_exponent = -126, bias = 127;
  static constexpr double largest = 0x1.fep127;
  static constexpr unsigned quiet = 0x0040, exponent_mask = 0x7f80;
};

/// The value of a bit pattern by the definition of IEEE 754: sign, biased exponent, significand.
template <class T> double decoded(unsigned bits) {
  using F = Format<T>;
  const unsigned fraction = bits & ((1u << (F::digits - 1)) - 1u);
  const int exponent = static_cast<int>((bits & F::exponent_mask) >> (F::digits - 1));
  const double one = std::ldexp(1.0, F::digits - 1);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, F::min_exponent - F::digits + 1)
                                         : std::ldexp((one + fraction) / one, exponent - F::bias);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// x rounded to the format, ties to even, in double arithmetic and nothing else.
template <class T> double rounded(double x) {
  using F = Format<T>;
  if (x == 0 || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), F::min_exponent) - F::digits + 1;
  const double r = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  return std::abs(r) > F::largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : r;
}

template <class T> void expect_rounds(float x) {
  const float y = T(x);
  ASSERT_EQ(static_cast<double>(y), rounded<T>(x)) << "of " << std::hexfloat << x;
  ASSERT_EQ(std::signbit(y), std::signbit(x)) << "of " << std::hexfloat << x;
}

template <class T> class StorageScalar : public ::testing::Test {};
using StorageScalars = ::testing::Types<mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(StorageScalar, StorageScalars);

TYPED_TEST(StorageScalar, EveryPatternHasTheValueOfTheDefinition) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const float x = TypeParam::from_bits(static_cast<std::uint16_t>(bits));
    const unsigned magnitude = bits & 0x7fffu, mask = Format<TypeParam>::exponent_mask;
    if (magnitude < mask)
      ASSERT_EQ(static_cast<double>(x), decoded<TypeParam>(bits)) << bits;
    else if (magnitude == mask)
      ASSERT_EQ(x, (bits & 0x8000u) != 0 ? -infinity : infinity) << bits;
    else
      ASSERT_TRUE(std::isnan(x)) << bits;
    ASSERT_EQ(std::signbit(x), (bits & 0x8000u) != 0) << bits;
  }
}

TYPED_TEST(StorageScalar, EveryPatternSurvivesTheRoundTrip) {
  for (unsigned bits = 0; bits <= 0xffff; ++bits) {
    const auto x = TypeParam::from_bits(static_cast<std::uint16_t>(bits));
    const bool nan = (bits & 0x7fffu) > Format<TypeParam>::exponent_mask;
    // A signalling NaN comes back quiet with its payload; everything else comes back as it was.
    ASSERT_EQ(TypeParam(static_cast<float>(x)).bits, nan ? bits | Format<TypeParam>::quiet : bits) << bits;
  }
}

TYPED_TEST(StorageScalar, RoundsToNearestEvenBetweenAllNeighbours) {
  for (unsigned bits = 0; bits < Format<TypeParam>::exponent_mask; ++bits) {
    const double low = decoded<TypeParam>(bits), high = decoded<TypeParam>(bits + 1);
    const float middle = static_cast<float>((low + high) / 2);  // exact: a float has bits to spare
    for (const float x : {static_cast<float>(low), std::nextafter(static_cast<float>(low), infinity),
                          std::nextafter(middle, 0.f), middle, std::nextafter(middle, infinity)}) {
      expect_rounds<TypeParam>(x);
      expect_rounds<TypeParam>(-x);
    }
  }
}

TYPED_TEST(StorageScalar, RoundsFloatsOfEveryMagnitude) {
  for (std::uint64_t w = 0; w <= 0x7f800000u; w += 9973) {
    expect_rounds<TypeParam>(from_word(static_cast<std::uint32_t>(w)));
    expect_rounds<TypeParam>(from_word(static_cast<std::uint32_t>(w) | 0x80000000u));
  }
  for (std::uint32_t w = 0; w < 5000; ++w) expect_rounds<TypeParam>(from_word(w));  // the least subnormals of float
}

TYPED_TEST(StorageScalar, OverflowsToInfinityFromTheMiddleOn) {
  const float largest = static_cast<float>(Format<TypeParam>::largest);
  const double half_step = std::ldexp(1.0, std::ilogb(Format<TypeParam>::largest) - Format<TypeParam>::digits);
  const float middle = static_cast<float>(Format<TypeParam>::largest + half_step);
  EXPECT_EQ(static_cast<float>(TypeParam(std::nextafter(middle, 0.f))), largest);
  EXPECT_EQ(static_cast<float>(TypeParam(middle)), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-middle)), -infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(infinity)), infinity);
}

TYPED_TEST(StorageScalar, ANanStaysOneWhateverItsPayload) {
  for (std::uint32_t payload = 1; payload < 0x00800000u; payload = payload < 70000 ? payload + 1 : payload + 4093)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const TypeParam x(from_word(sign | 0x7f800000u | payload));
      ASSERT_TRUE(std::isnan(static_cast<float>(x))) << payload;
      ASSERT_EQ(x.bits >> 15, sign >> 31) << payload;
      // The upper bits of the payload are kept, and the quiet bit is set.
      const unsigned fraction_bits = Format<TypeParam>::digits - 1u, kept = payload >> (23u - fraction_bits);
      ASSERT_EQ(x.bits & ((1u << fraction_bits) - 1u), kept | Format<TypeParam>::quiet) << payload;
    }
}

TYPED_TEST(StorageScalar, KeepsTheSignOfZero) {
  EXPECT_EQ(TypeParam(0.f).bits, 0u);
  EXPECT_EQ(TypeParam(-0.f).bits, 0x8000u);
  EXPECT_TRUE(std::signbit(static_cast<float>(TypeParam(-0.f))));
  EXPECT_EQ(TypeParam().bits, 0u);
}

TYPED_TEST(StorageScalar, IsTwoPlainBytesThatNarrowOnlyWhenAsked) {
  static_assert(sizeof(TypeParam) == 2 && std::is_trivially_copyable_v<TypeParam>);
  static_assert(!std::is_convertible_v<float, TypeParam> && std::is_constructible_v<TypeParam, float>);
  static_assert(std::is_convertible_v<TypeParam, float>);
}

TEST(StorageScalars, ConvertInConstantExpressions) {
  static_assert(mha::half(1.f).bits == 0x3c00 && mha::half(-2.f).bits == 0xc000);
  static_assert(mha::half(0x1p-24f).bits == 0x0001 && mha::half(65504.f).bits == 0x7bff);
  static_assert(mha::half(0x1p-25f).bits == 0x0000 && mha::half(0x1.8p-24f).bits == 0x0002);
  static_assert(mha::bfloat16(1.f).bits == 0x3f80 && mha::bfloat16(0x1.01p0f).bits == 0x3f80);
  static_assert(mha::bfloat16(0x1.03p0f).bits == 0x3f82);
  static_assert(float(mha::half::from_bits(0x3555)) == 0x1.554p-2f);
}

struct Fixed {};

}  // namespace

template <> struct mha::ScalarTraits<Fixed> { using Accumulator = double; };

namespace {

TEST(Accumulator, IsFloatForStorageScalarsAndTheScalarItselfOtherwise) {
  static_assert(std::is_same_v<mha::Accumulator<mha::half>, float>);
  static_assert(std::is_same_v<mha::Accumulator<mha::bfloat16>, float>);
  static_assert(std::is_same_v<mha::Accumulator<const mha::bfloat16>, float>);
  static_assert(std::is_same_v<mha::Accumulator<float>, float>);
  static_assert(std::is_same_v<mha::Accumulator<double>, double>);
  static_assert(std::is_same_v<mha::Accumulator<long double>, long double>);
  static_assert(std::is_same_v<mha::Accumulator<Fixed>, double>, "a user's scalar may name its own");
}

TEST(MinusInfinity, LiesBelowTheLowestNumber) {
  EXPECT_LT(mha::minus_infinity<float>(), std::numeric_limits<float>::lowest());
  EXPECT_LT(mha::minus_infinity<double>(), std::numeric_limits<double>::lowest());
  EXPECT_EQ(std::exp(mha::minus_infinity<long double>()), 0);
}

TEST(ScalarName, IsTheNameAUserWrites) {
  EXPECT_STREQ(mha::detail::scalar_name<float>(), "float");
  EXPECT_STREQ(mha::detail::scalar_name<double>(), "double");
  EXPECT_STREQ(mha::detail::scalar_name<mha::half>(), "half");
  EXPECT_STREQ(mha::detail::scalar_name<mha::bfloat16>(), "bfloat16");
  EXPECT_STREQ(mha::detail::scalar_name<Fixed>(), "user scalar");
}

template <class T> void expect_limits_of_the_format() {
  using F = Format<T>;
  using Limits = std::numeric_limits<T>;
  static_assert(Limits::is_specialized && Limits::has_infinity && !Limits::is_integer);
  EXPECT_EQ(Limits::digits, F::digits);
  EXPECT_EQ(Limits::min_exponent, F::min_exponent + 1);
  EXPECT_EQ(Limits::max_exponent, F::bias + 1);
  EXPECT_EQ(static_cast<double>(Limits::max()), F::largest);
  EXPECT_EQ(static_cast<double>(Limits::lowest()), -F::largest);
  EXPECT_EQ(static_cast<double>(Limits::min()), std::ldexp(1.0, F::min_exponent));
  EXPECT_EQ(static_cast<double>(Limits::denorm_min()), std::ldexp(1.0, F::min_exponent - F::digits + 1));
  EXPECT_EQ(static_cast<double>(Limits::epsilon()), std::ldexp(1.0, 1 - F::digits));
  EXPECT_EQ(static_cast<double>(Limits::round_error()), 0.5);
  EXPECT_EQ(static_cast<float>(Limits::infinity()), infinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(Limits::quiet_NaN())));
  EXPECT_EQ(Limits::quiet_NaN().bits & F::quiet, F::quiet);
  EXPECT_TRUE(std::isnan(static_cast<float>(Limits::signaling_NaN())));
  EXPECT_EQ(Limits::signaling_NaN().bits & F::quiet, 0u);
  EXPECT_EQ(Limits::digits10, static_cast<int>((F::digits - 1) * 0.30103));
  EXPECT_EQ(Limits::max_digits10, 2 + static_cast<int>(F::digits * 0.30103));
  EXPECT_EQ(Limits::max_exponent10, static_cast<int>(std::log10(F::largest)));
  EXPECT_EQ(Limits::min_exponent10, static_cast<int>(F::min_exponent * 0.30103));
}

TEST(Scalar, LimitsAreThoseOfTheFormat) {
  expect_limits_of_the_format<mha::half>();
  expect_limits_of_the_format<mha::bfloat16>();
}

}  // namespace
