// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/rounded_weights.hpp>

#include "compare.hpp"
#include "four_bits.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::scaled_int4;
using mha::scaled_int8;
using mha::detail::bytes_of_weight;
using mha::detail::farther;
using mha::detail::WeightRounding;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
                smallest = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();

static_assert(mha::weights_per_scale<scaled_int8> == 256 && mha::weights_per_scale<scaled_int4> == 32);
static_assert(mha::detail::is_rounded<scaled_int8> && mha::detail::is_rounded<scaled_int4>);
static_assert(!mha::detail::is_rounded<float> && !mha::detail::is_rounded<bfloat16> &&
              !mha::detail::is_rounded<mha::half> && !mha::detail::is_rounded<double>);
static_assert(std::is_same_v<mha::detail::WeightScale<scaled_int8>, float> &&
              std::is_same_v<mha::detail::WeightScale<scaled_int4>, bfloat16>);
static_assert(sizeof(scaled_int4) == 1);

TEST(BytesOfWeight, HasItsShareOfAScale) {
  EXPECT_EQ(bytes_of_weight<double>(), 8);
  EXPECT_EQ(bytes_of_weight<float>(), 4);
  EXPECT_EQ(bytes_of_weight<bfloat16>(), 2);
  EXPECT_EQ(bytes_of_weight<scaled_int8>(), 1 + 4.0 / 256);
  EXPECT_EQ(bytes_of_weight<scaled_int4>(), 0.5625);
}

TEST(Farther, IsTheFirstOfEqualsAndNaNBeforeInfinity) {
  EXPECT_EQ(farther(1, -2), -2);
  EXPECT_EQ(farther(-2, 1), -2);
  EXPECT_EQ(farther(2, -2), 2);
  EXPECT_EQ(farther(-2, 2), -2);
  EXPECT_EQ(farther(0, smallest), smallest);
  EXPECT_FALSE(std::signbit(farther(0.0f, -0.0f)));
  EXPECT_TRUE(std::signbit(farther(-0.0f, 0.0f)));
  EXPECT_EQ(farther(largest, -inf), -inf);
  EXPECT_TRUE(std::isnan(farther(inf, nan)));
  EXPECT_TRUE(std::isnan(farther(-nan, inf)));
}

TEST(WeightRoundingOfEightBits, IsThatOfRows) {
  support::Random random("as rows");
  for (int round = 0; round < 1000; ++round) {
    std::vector<float> numbers(17);
    for (float& x : numbers) x = static_cast<float>(random.normal() * std::exp2(random.uniform(-100, 100)));
    if (round % 10 == 0) numbers[3] = round % 20 == 0 ? inf : nan;
    if (round % 10 == 1) std::fill(numbers.begin(), numbers.end(), smallest);
    float farthest = 0;
    for (const float x : numbers) farthest = farther(farthest, x);
    std::vector<scaled_int8> row(numbers.size() + 4);
    mha::quantize_row(numbers.data(), 17, row.data() + 4);
    const WeightRounding<scaled_int8> rounding(farthest);
    if (round % 10 == 0)
      ASSERT_TRUE(std::isnan(rounding.scale) && std::isnan(mha::row_scale(row.data() + 4)));
    else
      ASSERT_EQ(rounding.scale, mha::row_scale(row.data() + 4));
    for (std::size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(rounding.integer(numbers[i]), row[i + 4].integer);
  }
}

TEST(WeightRoundingOfFourBits, MakesTheFarthestMinusEight) {
  support::Random random("farthest");
  for (int round = 0; round < 100000; ++round) {
    const auto farthest =
        static_cast<float>((random.chance(0.5) ? -1 : 1) * std::exp2(random.uniform(-66, 127.99)));  // from 1.4e-20 on
    const WeightRounding<scaled_int4> rounding(farthest);
    ASSERT_EQ(support::to_double(rounding.scale), support::nearest_scale(support::to_double(farthest) / -8))
        << farthest;
    ASSERT_EQ(rounding.integer(farthest), -8) << farthest;
    ASSERT_EQ(rounding.integer(-farthest), 7) << farthest;
    const double s = support::to_double(rounding.scale), number = random.uniform(-1, 1) * std::abs(double(farthest));
    const double steps = std::nearbyint(support::to_double(static_cast<float>(number)) / s);
    ASSERT_EQ(rounding.integer(static_cast<float>(number)), std::clamp(steps, -8.0, 7.0))
        << number << " of " << farthest;
  }
}

// All scales of 8 significant bits, of either sign, and all halves between two integers.
TEST(WeightRoundingOfFourBits, SendsHalvesToTheEvenInteger) {
  for (int digits = 128; digits < 256; ++digits)
    for (const float sign : {1.0f, -1.0f}) {
      const float scale = sign * static_cast<float>(digits) / 64;
      const WeightRounding<scaled_int4> rounding(-8 * scale);
      ASSERT_EQ(rounding.scale, scale);
      for (int twice = -15; twice <= 15; ++twice) {
        const float number = static_cast<float>(twice) / 2 * scale;  // exact
        const double even = std::nearbyint(twice / 2.0);
        ASSERT_EQ(rounding.integer(number), std::min(even, 7.0)) << number << " by " << scale;
        // The next numbers are on one side of it.
        if (twice % 2 != 0) {
          const int low = (twice - 1) / 2;
          const float above = std::nextafter(number, sign * inf), below = std::nextafter(number, -sign * inf);
          ASSERT_EQ(rounding.integer(above), std::min(low + 1, 7)) << above << " by " << scale;
          ASSERT_EQ(rounding.integer(below), low) << below << " by " << scale;
        }
      }
    }
}

TEST(WeightRoundingOfFourBits, IsNaNOfWhatIsNotFiniteAndZeroOfWhatIsTiny) {
  for (const float x : {inf, -inf, nan, -nan}) {
    const WeightRounding<scaled_int4> rounding(x);
    EXPECT_TRUE(std::isnan(rounding.scale));
    for (const float number : {x, 0.0f, 1.0f, -largest}) EXPECT_EQ(rounding.integer(number), 0);
  }
  for (const float x : {0.0f, -0.0f, smallest, -smallest, 0.999e-20f, -0.999e-20f}) {
    const WeightRounding<scaled_int4> rounding(x);
    EXPECT_EQ(rounding.scale, 0) << x;
    EXPECT_EQ(rounding.integer(x), 0) << x;
  }
  const WeightRounding<scaled_int4> least(1e-20f);
  EXPECT_NE(least.scale, 0);
  EXPECT_EQ(least.integer(1e-20f), -8);
  EXPECT_EQ(least.integer(-smallest), 0);
}

TEST(WeightRoundingOfFourBits, IsFiniteOfTheLargestNumbers) {
  for (const float x : {largest, -largest, 3.4e38f, -3.4e38f, 3.39e38f, 3.38e38f, 0x1.fep127f, 0x1.ffp127f}) {
    const WeightRounding<scaled_int4> rounding(x);
    ASSERT_EQ(rounding.integer(x), -8) << x;
    const float becomes = static_cast<float>(rounding.integer(x)) * rounding.scale;
    ASSERT_TRUE(std::isfinite(becomes)) << x;
    ASSERT_NEAR(becomes / x, 1, 1.0 / 200) << x;
  }
}

}  // namespace
