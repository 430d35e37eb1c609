// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include <mha/core/mersenne.hpp>

namespace {

TEST(Mersenne64, GivesTheNumbersOfTheStandardLibrary) {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5489}, ~std::uint64_t{0}}) {
    mha::detail::Mersenne64 ours(seed);
    std::mt19937_64 theirs(seed);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(ours(), theirs()) << "number " << i << " of seed " << seed;
  }
}

TEST(Mersenne64, HasTheTenThousandthNumberThatTheStandardNames) {
  mha::detail::Mersenne64 draw(5489);
  for (int i = 1; i < 10000; ++i) draw();
  EXPECT_EQ(draw(), 9981545732273789042u);
}

TEST(Mersenne64, IsComputedByTheCompilerToo) {
  static_assert(mha::detail::Mersenne64(5489)() == 14514284786278117030u);
}

}  // namespace
