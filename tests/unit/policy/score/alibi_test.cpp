// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/score/alibi.hpp>

#include "../finite_difference.hpp"

namespace {

using mha::Alibi;

/// The published construction: a geometric sequence for the largest power of two, then every other slope of twice it.
std::vector<double> published(int heads) {
  const auto powers = [](int n) {
    std::vector<double> slopes;
    const double start = std::pow(2.0, -8.0 / n);
    for (int i = 0; i < n; ++i) slopes.push_back(std::pow(start, i + 1));
    return slopes;
  };
  int n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<double> slopes = powers(n);
  const std::vector<double> more = powers(2 * n);
  for (std::size_t i = 0; static_cast<int>(slopes.size()) < heads; i += 2) slopes.push_back(more[i]);
  return slopes;
}

TEST(Alibi, HasThePublishedSlopesForAnyNumberOfHeads) {
  for (int heads = 1; heads <= 20; ++heads) {
    const auto expected = published(heads);
    for (int h = 0; h < heads; ++h)
      EXPECT_NEAR(Alibi::slope(h, heads), expected[static_cast<std::size_t>(h)], 1e-15) << heads << ' ' << h;
  }
}

TEST(Alibi, HalvesFromHeadToHeadWithEightOfThem) {
  for (int h = 0; h < 8; ++h) EXPECT_EQ(Alibi::slope(h, 8), std::ldexp(1.0, -(h + 1)));
  EXPECT_EQ(Alibi::slope(0, 16), std::sqrt(0.5));
  EXPECT_EQ(Alibi::slope(8, 12), std::sqrt(0.5)) << "the first of those beyond a power of two";
  EXPECT_EQ(Alibi::slope(0, 1), 0x1p-8);
}

TEST(Alibi, TakesTheDistanceAwayInBothDirections) {
  const Alibi score = Alibi{}.prepared({.batch = 1, .heads = 8, .queries = 4, .keys = 6, .origin = 2});
  EXPECT_EQ(score.heads, 8);
  for (int h = 0; h < 8; ++h)
    for (int q = 0; q < 6; ++q)
      for (int k = 0; k < 6; ++k)
        EXPECT_EQ(score(1.0, 0, h, q, k), 1 - std::ldexp(1.0, -(h + 1)) * std::abs(q - k)) << h << ' ' << q << ' ' << k;
}

TEST(Alibi, CountsFromAbsolutePositions) {
  const Alibi score =
      Alibi{}.prepared({.batch = 1, .heads = 8, .queries = 1, .keys = 1 << 20, .origin = (1 << 20) - 1});
  EXPECT_EQ(score(0.0, 0, 0, (1 << 20) - 1, 0), -((1 << 20) - 1) / 2.0);
  EXPECT_EQ(score(0.0, 0, 0, -3, 2), -2.5) << "a query before the first key";
}

// Of 12 heads most slopes are no short numbers: each scalar has its own nearest.
TEST(Alibi, HasSlopesOfTheLogitsScalar) {
  for (int h = 0; h < 12; ++h) {
    const double slope = Alibi::slope(h, 12);
    EXPECT_EQ(Alibi{12}(0.0, 0, h, 0, 3), -3 * slope) << h;
    EXPECT_EQ(Alibi{12}(0.f, 0, h, 0, 3), -3.f * static_cast<float>(slope)) << h;
    EXPECT_EQ(Alibi{12}(0.L, 0, h, 0, 3), -3.L * static_cast<long double>(slope)) << h;
    EXPECT_EQ(Alibi{12}(mha::Dual<float>(0), 0, h, 0, 3).value, Alibi{12}(0.f, 0, h, 0, 3)) << h;
  }
}

TEST(Alibi, IsAPlainScoreWithoutDefaults) {
  static_assert(mha::Score<Alibi> && mha::Score<Alibi::OfHead> && std::is_trivially_copyable_v<Alibi::OfHead>);
  mha_test::expect_derivatives(Alibi{8});
}

}  // namespace
