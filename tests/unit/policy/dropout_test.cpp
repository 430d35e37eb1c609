// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <mha/core/check.hpp>
#include <mha/policy/dropout.hpp>

#include "random.hpp"

namespace {

using mha::Dropout;
using mha::dropout_keeps;
using mha::DropoutDraws;
using mha::DropoutSeed;
using mha::Index;
using mha::detail::dropout_draws;

static_assert(mha::plays<Dropout, mha::Role::dropout> && mha::plays<mha::NoDropout, mha::Role::dropout>);
static_assert(mha::DropoutPolicy<Dropout> && !mha::DropoutPolicy<DropoutSeed>);

TEST(Dropout, KeepsAPairByItsWordOfPhilox) {
  support::Random random("keeps");
  for (int turn = 0; turn < 200; ++turn) {
    const auto p = static_cast<float>(random.uniform(0.01, 0.99));
    const auto seed = static_cast<std::uint64_t>(random.engine()());
    const auto offset = static_cast<std::uint32_t>(random.engine()());
    const Index heads = 1 + random.below(9), b = random.below(5), h = random.below(heads),
                q = random.below(5000) - 1000, k = random.below(5000);
    const auto words = mha::philox4x32<7>({{static_cast<std::uint32_t>(k / 4), static_cast<std::uint32_t>(q),
                                            static_cast<std::uint32_t>(b * heads + h), offset}},
                                          seed);
    const bool kept = words.word[k % 4] / 4294967296. >= double{p} - 1e-9;
    const bool surely = std::abs(words.word[k % 4] / 4294967296. - double{p}) > 1e-8;
    if (surely) {
      EXPECT_EQ(dropout_keeps(Dropout{.p = p}, DropoutSeed{seed, offset}, heads, b, h, q, k), kept);
    }
  }
}

// The threshold itself is kept, one word in 2³².
TEST(Dropout, KeepsAWordThatIsTheThreshold) {
  DropoutDraws draws = dropout_draws(0.5, DropoutSeed{7, 1});
  for (Index k = 0; k < 8; ++k) {
    draws.threshold = draws.words(3, 5, k / 4).word[k % 4];
    EXPECT_EQ(draws.factor(3, 5, k), 2) << k;
    ++draws.threshold;
    EXPECT_EQ(draws.factor(3, 5, k), 0) << k;
  }
}

TEST(Dropout, RoundsItsProbability) {
  const auto threshold = [](double p) { return dropout_draws(p, DropoutSeed{7, 1}).threshold; };
  EXPECT_EQ(threshold(0.75 / 4294967296.), 1u);
  EXPECT_EQ(threshold(0.25 / 4294967296.), 0u);
  EXPECT_EQ(threshold(1e-4), 429497u);  // 429496.7296
}

TEST(Dropout, DropsAtItsRate) {
  for (const float p : {0.001f, 0.1f, 0.5f, 0.9f, 0.999f}) {
    const DropoutSeed seed{support::seed(), 3};
    double dropped = 0;
    constexpr Index queries = 200, keys = 301, heads = 3, batch = 2;
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index q = 0; q < queries; ++q)
          for (Index k = 0; k < keys; ++k) dropped += dropout_keeps(Dropout{.p = p}, seed, heads, b, h, q, k) ? 0 : 1;
    const double n = double{queries} * keys * heads * batch, deviation = std::sqrt(n * double{p} * (1 - double{p}));
    EXPECT_NEAR(dropped, n * double{p}, 5 * deviation) << "p " << p;
  }
}

/// How many of n pairs differ between two calls, at p = ½: half of them if their draws have nothing to do with each
/// other.
template <class F, class G> void expect_independent(const char* what, const F& one, const G& other) {
  constexpr Index queries = 100, keys = 100;
  double same = 0;
  for (Index q = 0; q < queries; ++q)
    for (Index k = 0; k < keys; ++k) same += one(q, k) == other(q, k) ? 1 : 0;
  EXPECT_NEAR(same, queries * keys / 2., 5 * std::sqrt(queries * keys / 4.)) << what;
}

TEST(Dropout, DrawsAnewForEverySeedOffsetSequenceHeadQueryAndKey) {
  const Dropout half{.p = 0.5f};
  const auto seed = static_cast<std::uint64_t>(support::seed());
  const auto plain = [&](Index q, Index k) { return dropout_keeps(half, DropoutSeed{seed, 0}, 4, 1, 2, q, k); };
  const auto with = [&](const DropoutSeed& s, Index b, Index h, Index dq, Index dk) {
    return [=](Index q, Index k) { return dropout_keeps(half, s, 4, b, h, q + dq, k + dk); };
  };
  const DropoutSeed same{seed, 0};
  expect_independent("seed", plain, with(DropoutSeed{seed + 1, 0}, 1, 2, 0, 0));
  expect_independent("high word of the seed", plain, with(DropoutSeed{seed ^ (std::uint64_t{1} << 40), 0}, 1, 2, 0, 0));
  expect_independent("offset", plain, with(DropoutSeed{seed, 1}, 1, 2, 0, 0));
  expect_independent("sequence", plain, with(same, 2, 2, 0, 0));
  expect_independent("head", plain, with(same, 1, 3, 0, 0));
  expect_independent("query", plain, with(same, 1, 2, 1, 0));
  expect_independent("key", plain, with(same, 1, 2, 0, 1));
  expect_independent("block of keys", plain, with(same, 1, 2, 0, 4));
}

TEST(Dropout, HasAFactorOfZeroOrOneByWhatIsKept) {
  const DropoutDraws draws = dropout_draws(0.75, DropoutSeed{7, 1});
  EXPECT_TRUE(draws.exist());
  EXPECT_EQ(draws.threshold, 3u << 30);
  EXPECT_EQ(draws.scale, 4);
  int kept = 0;
  for (Index k = 0; k < 1000; ++k) {
    const double factor = draws.factor(5, 6, k);
    EXPECT_TRUE(factor == 0 || factor == 4);
    kept += factor > 0 ? 1 : 0;
  }
  EXPECT_NEAR(kept, 250, 70);
}

TEST(Dropout, ExistsWithASeedAndAProbabilityAlone) {
  EXPECT_FALSE(dropout_draws(0.5, {}).exist());
  EXPECT_FALSE(dropout_draws(0, DropoutSeed{1}).exist());
  EXPECT_EQ(dropout_draws(0, DropoutSeed{1}), DropoutDraws{});
  EXPECT_TRUE(dropout_keeps(Dropout{.p = 0.f}, DropoutSeed{1}, 1, 0, 0, 0, 0));
  EXPECT_EQ(dropout_draws(1e-11, DropoutSeed{1}), DropoutDraws{}) << "it is rounded to 0";
  // The largest float below 1 does not become the threshold 2³² = 0.
  const DropoutDraws most = dropout_draws(double{std::nextafter(1.f, 0.f)}, DropoutSeed{1});
  EXPECT_EQ(most.threshold, 0xffffff00u);
}

TEST(Dropout, ASeedIsAnyInteger) {
  const int step = 3;
  const DropoutSeed seed{7, step};
  EXPECT_EQ(seed.seed, 7u);
  EXPECT_EQ(seed.offset, 3u);
  EXPECT_EQ((DropoutSeed{-1}.seed), ~std::uint64_t{0});
  EXPECT_EQ(DropoutSeed{5}, (DropoutSeed{5, 0}));
}

TEST(Dropout, RefusesWhatIsNoProbability) {
  for (const double p : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    try {
      mha::detail::require_probability("attention", p);
      ADD_FAILURE() << p;
    } catch (const mha::ShapeError& error) {
      EXPECT_NE(std::string(error.what()).find("attention: Dropout has p "), std::string::npos) << error.what();
    }
  }
  for (const double p : {0., 0.5, 0.999}) EXPECT_NO_THROW(mha::detail::require_probability("attention", p));
  for (const float p : {-0.5f, 1.f, 1.5f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_THROW(dropout_keeps(Dropout{.p = p}, DropoutSeed{1}, 1, 0, 0, 0, 0), mha::ShapeError) << p;
}

TEST(Dropout, RefusesAnOffsetOfMoreThan32Bits) {
  EXPECT_EQ((DropoutSeed{7, 4294967295}.offset), 4294967295u);
  for (const long long offset : {4294967296LL, -1LL}) {
    try {
      DropoutSeed{7, offset};
      ADD_FAILURE() << offset;
    } catch (const mha::ShapeError& error) {
      EXPECT_EQ(error.what(), "DropoutSeed: the offset is " + std::to_string(offset) +
                                  ", it must be at least 0 and below 4294967296");
    }
  }
}

}  // namespace
