// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/stored_row.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::scaled_int8;
using support::bits;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

/// A row at an odd address, with memory around it that nobody may write.
struct Row {
  std::vector<scaled_int8> memory;
  Index n;

  template <class T>
  explicit Row(const std::vector<T>& numbers, Index count, std::ptrdiff_t stride = 1)
      : memory(static_cast<std::size_t>(1 + 4 + count + 1), support::eight_bits(77)), n(count) {
    mha::quantize_row(numbers.data(), n, memory.data() + 5, stride);
    EXPECT_EQ(memory.front().integer, 77);
    EXPECT_EQ(memory.back().integer, 77);
  }
  template <class T> explicit Row(const std::vector<T>& numbers) : Row(numbers, static_cast<Index>(numbers.size())) {}

  const scaled_int8* data() const { return memory.data() + 5; }
  float scale() const { return mha::row_scale(data()); }
  int integer(Index i) const { return data()[i].integer; }
  std::vector<float> read() const {
    std::vector<float> to(static_cast<std::size_t>(n));
    mha::read_row(data(), n, to.data());
    return to;
  }
};

TEST(StoredRow, TakesAsManyElementsAsItHasNumbersAndItsScale) {
  EXPECT_EQ(mha::row_lead<float>, 0);
  EXPECT_EQ(mha::row_lead<mha::bfloat16>, 0);
  EXPECT_EQ(mha::row_lead<scaled_int8>, 4);
  static_assert(sizeof(scaled_int8) == 1);
  EXPECT_EQ(mha::row_elements<mha::half>(7), 7);
  EXPECT_EQ(mha::row_elements<scaled_int8>(7), 11);
  EXPECT_EQ(mha::row_elements<scaled_int8>(1), 5);
  EXPECT_EQ(mha::row_elements<scaled_int8>(0), 0);
}

template <class T> class RowOf : public testing::Test {};
using Scalars = testing::Types<float, mha::half, mha::bfloat16, double>;
TYPED_TEST_SUITE(RowOf, Scalars);

TYPED_TEST(RowOf, ChangesNoNumberByMoreThanHalfAStep) {
  using T = TypeParam;
  support::Random random("rows in 8 bits");
  for (const Index n : {1, 2, 3, 7, 16, 31, 64, 129})
    for (const std::ptrdiff_t stride : {1, 3})
      for (int round = 0; round < 50; ++round) {
        std::vector<T> from(static_cast<std::size_t>(n * stride));
        const double size = std::exp2(random.uniform(-10, 10));
        for (T& x : from) x = support::Random::rounded<T>(size * random.normal());
        const Row row(from, n, stride);
        float largest = 0;
        for (Index i = 0; i < n; ++i)
          largest = std::max(largest, std::abs(static_cast<float>(from[static_cast<std::size_t>(i * stride)])));
        ASSERT_EQ(bits(row.scale()), bits(largest / 127.0f));
        const auto read = row.read();
        int highest = 0;
        for (Index i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double x = static_cast<float>(from[static_cast<std::size_t>(i * stride)]);
          ASSERT_LE(std::abs(double(read[at]) - x), double(largest) / 254 * 1.0001) << "number " << i << " of " << n;
          ASSERT_EQ(bits(read[at]), bits(static_cast<float>(row.integer(i)) * row.scale()));
          ASSERT_GE(row.integer(i), -127);
          highest = std::max(highest, std::abs(row.integer(i)));
        }
        ASSERT_EQ(highest, largest > 0 ? 127 : 0);
      }
}

TYPED_TEST(RowOf, IsNaNIfANumberIsNotFinite) {
  using T = TypeParam;
  for (const float special : {inf, -inf, nan, -nan})
    for (std::size_t at = 0; at < 5; ++at) {
      std::vector<T> from(5, T(2.0f));
      from[at] = T(special);
      for (const float x : Row(from).read()) EXPECT_TRUE(std::isnan(x)) << special << " at " << at;
    }
}

// Of the scale that is stored, not of the numbers that were given.
TEST(StoredRow, IsTheSameWhenItIsStoredAgain) {
  support::Random random("rows stored again");
  for (int round = 0; round < 500; ++round) {
    std::vector<float> from(33);
    for (float& x : from) x = static_cast<float>(std::exp2(random.uniform(-90, 90)) * random.normal());
    const Row once(from);
    const auto read = once.read();
    const Row twice(read);
    ASSERT_NEAR(twice.scale() / once.scale(), 1, 2e-7);
    for (Index i = 0; i < 33; ++i) ASSERT_EQ(twice.integer(i), once.integer(i));
  }
}

TEST(StoredRow, RoundsToTheNearestEvenInteger) {
  const Row row(std::vector<float>{127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 125.5f, 126.5f, -126.5f, 0.49f, -127});
  EXPECT_EQ(row.scale(), 1.0f);
  const int expected[] = {127, 0, 2, 2, 0, -2, -2, 126, 126, -126, 0, -127};
  for (Index i = 0; i < 12; ++i) EXPECT_EQ(row.integer(i), expected[i]) << i;
}

// Their products with 127 / 100.125 are as near to halves as 1e-7: rounded to float they would be halves, and whether
// they are is up to the compiler, which may fuse a product with a sum.
TEST(StoredRow, RoundsOnceWhateverTheCompilerFuses) {
  const Row row(std::vector<float>{100.125f, 0x1.2ebd7ap+0f, 0x1.f89122p+0f, 0x1.613264p+1f, -0x1.47f7fp+2f});
  const int expected[] = {127, 1, 3, 3, -7};
  for (Index i = 0; i < 5; ++i) EXPECT_EQ(row.integer(i), expected[i]) << i;
}

TEST(StoredRow, IsZeroOfZerosAndOfTinyNumbers) {
  constexpr float smallest = std::numeric_limits<float>::denorm_min();
  for (const float x : {0.0f, -0.0f, smallest, -smallest, 1e-38f, 0.99e-30f, -0.99e-30f}) {
    const Row row(std::vector<float>{x, 0, -x});
    EXPECT_EQ(bits(row.scale()), bits(0.0f)) << x;
    for (const float read : row.read()) EXPECT_EQ(bits(read), bits(0.0f)) << x;
  }
  const Row row(std::vector<float>{1.01e-30f, -0.5e-30f, smallest, -0.0f});
  EXPECT_EQ(row.integer(0), 127);
  EXPECT_EQ(row.integer(1), -63);
  EXPECT_NEAR(row.read()[0] / 1.01e-30f, 1, 1e-6);
  EXPECT_EQ(row.read()[2], 0.0f);
  EXPECT_EQ(bits(row.read()[3]), bits(0.0f)) << "an integer has no sign of zero";
}

TEST(StoredRow, StaysFiniteOfTheLargestNumbers) {
  constexpr float largest = std::numeric_limits<float>::max();
  for (const float x : {largest, -largest, 3.4e38f, 3.39e38f}) {
    const Row row(std::vector<float>{x, -x, x / 2, 1});
    const auto read = row.read();
    EXPECT_EQ(row.integer(0), x > 0 ? 127 : -127);
    EXPECT_EQ(row.integer(1), x > 0 ? -127 : 127);
    EXPECT_NEAR(read[0] / x, 1, 1e-3);
    EXPECT_NEAR(read[2] / x, 0.5, 0.01);
    EXPECT_EQ(read[3], 0.0f);
    for (const float y : read) EXPECT_TRUE(std::isfinite(y));
  }
}

TEST(StoredRow, OfADoubleBeyondFloatIsNaN) {
  for (const float x : Row(std::vector<double>{1, 1e39}).read()) EXPECT_TRUE(std::isnan(x));
}

TEST(StoredRow, OfNoNumbersTakesNoMemory) {
  scaled_int8 memory[8];
  std::fill(std::begin(memory), std::end(memory), support::eight_bits(77));
  mha::quantize_row(static_cast<const float*>(nullptr), 0, memory + 4);
  for (const scaled_int8 x : memory) EXPECT_EQ(x.integer, 77);
}

TEST(StoredRow, NumbersAreReadInTheScalarOfTheSum) {
  const Row row(std::vector<float>{1, -0.3f});
  EXPECT_EQ(mha::detail::stored_number<double>(row.data(), 1), static_cast<double>(row.read()[1]));
  const float plain[] = {0.1f, 0.2f};
  EXPECT_EQ(mha::detail::stored_number<double>(plain, 1), static_cast<double>(0.2f));
  const mha::half narrow[] = {mha::half(1.0f), mha::half(0.5f)};
  EXPECT_EQ(mha::detail::stored_number<float>(narrow, 1), 0.5f);
}

}  // namespace
