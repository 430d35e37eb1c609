// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/dual.hpp>
#include <mha/core/workspace.hpp>
#include <mha/policy/score/relative_bias.hpp>

#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::RelativeBias;
using mha::RelativeBuckets;

/// The bucket by the formula in long double, and whether a bucket's edge is so near that rounding may decide.
std::pair<int, bool> by_formula(const RelativeBuckets& b, int relative) {
  const int buckets = b.bidirectional ? b.count / 2 : b.count;
  const int base = b.bidirectional && relative > 0 ? buckets : 0;
  const int n = b.bidirectional ? std::abs(relative) : relative < 0 ? -relative : 0;
  const int exact = buckets / 2;
  if (n < exact) return {base + n, false};
  const long double step = std::log(static_cast<long double>(n) / exact) /
                           std::log(static_cast<long double>(b.max_distance) / exact) * (buckets - exact);
  const bool edge = n > exact && std::abs(step - std::round(step)) < 1e-4L;
  return {base + std::min(exact + static_cast<int>(std::floor(step)), buckets - 1), edge};
}

const RelativeBuckets all_buckets[] = {{},
                                       {.count = 32, .max_distance = 128, .bidirectional = false},
                                       {.count = 8, .max_distance = 20, .bidirectional = true},
                                       {.count = 6, .max_distance = 9, .bidirectional = false},
                                       {.count = 4, .max_distance = 2, .bidirectional = true},
                                       {.count = 2, .max_distance = 2, .bidirectional = false},
                                       {.count = 64, .max_distance = 1000, .bidirectional = true}};

TEST(RelativeBuckets, AreTheFormulasOfEveryDistance) {
  for (const RelativeBuckets& b : all_buckets)
    for (int relative = -1500; relative <= 1500; ++relative) {
      const auto [wanted, edge] = by_formula(b, relative);
      const int bucket = b.bucket(100, 100 + relative);
      ASSERT_EQ(bucket, b.bucket(-7, -7 + relative)) << "only the distance counts";
      if (edge)
        ASSERT_LE(std::abs(bucket - wanted), 1) << b.count << " buckets, distance " << relative;
      else
        ASSERT_EQ(bucket, wanted) << b.count << " buckets, distance " << relative;
    }
}

TEST(RelativeBuckets, StayInRangeAndGrowWithTheDistance) {
  for (const RelativeBuckets& b : all_buckets)
    for (const int direction : {-1, 1}) {
      int last = -1;
      for (int n = direction > 0 ? 1 : 0; n < 3000; ++n) {
        const int bucket = b.bucket(0, direction * n);
        ASSERT_GE(bucket, 0);
        ASSERT_LT(bucket, b.count);
        ASSERT_GE(bucket, last);
        last = bucket;
      }
    }
}

TEST(RelativeBuckets, HaveTheirKnownLandmarks) {
  const RelativeBuckets both, causal{.bidirectional = false};
  EXPECT_EQ(both.bucket(5, 5), 0);
  EXPECT_EQ(both.bucket(5, 4), 1);
  EXPECT_EQ(both.bucket(4, 5), 17);
  EXPECT_EQ(both.bucket(7, 0), 7);
  EXPECT_EQ(both.bucket(8, 0), 8);
  EXPECT_EQ(both.bucket(1000, 0), 15);
  EXPECT_EQ(both.bucket(0, 1000), 31);
  EXPECT_EQ(causal.bucket(0, 1000), 0) << "one direction only";
  EXPECT_EQ(causal.bucket(15, 0), 15);
  EXPECT_EQ(causal.bucket(1000, 0), 31);
}

TEST(RelativeBuckets, EndWithTheLastOneHoweverNarrowTheyAre) {
  const RelativeBuckets both{.count = 65536, .max_distance = 16385};  // logarithms of neighbours, far beyond the last
  const RelativeBuckets causal{.count = 65536, .max_distance = 32769, .bidirectional = false};
  for (const int n : {40000, 1 << 30, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(both.bucket(n, 0), 32767) << n;
    EXPECT_EQ(both.bucket(0, n), 65535) << n;
    EXPECT_EQ(causal.bucket(n, 0), 65535) << n;
  }
}

std::vector<float> random_table(int buckets, int heads) {
  support::Random random("table");
  std::vector<float> table(static_cast<std::size_t>(buckets) * static_cast<std::size_t>(heads));
  random.fill(table);
  return table;
}

TEST(RelativeBias, AddsTheTablesNumberForHeadAndBucket) {
  constexpr int heads = 3;
  const RelativeBuckets buckets{.count = 8, .max_distance = 20};
  const auto table = random_table(8, heads);
  const RelativeBias score(table, buckets);
  EXPECT_EQ(score.heads(), heads);
  for (int h = 0; h < heads; ++h)
    for (int q = 0; q < 30; ++q)
      for (int k = 0; k < 30; ++k)
        EXPECT_EQ(score(0.5f, 1, h, q, k), 0.5f + table[static_cast<std::size_t>(buckets.bucket(q, k) * heads + h)]);
}

TEST(RelativeBias, PreparedIsTheSame) {
  const mha::Index each[2] = {-3, 5};
  for (const bool bidirectional : {true, false})
    for (const mha::Origins& origin : {mha::Origins(0), mha::Origins(4), mha::Origins(-6), mha::Origins(each)}) {
      const mha::CallShape s{.batch = 2, .heads = 2, .queries = 7, .keys = 12, .origin = origin};
      const RelativeBias score(random_table(8, 2), {.count = 8, .max_distance = 6, .bidirectional = bidirectional});
      mha::Workspace workspace;
      auto frame = workspace.frame();
      for (const auto& ready : {mha::prepared(score, s), mha::prepared(score, s, frame)})
        for (int b = 0; b < s.batch; ++b)
          for (int h = 0; h < s.heads; ++h) {
            const auto head = mha::at_head(ready, b, h);
            for (int q = origin[b]; q < origin[b] + s.queries; ++q)
              for (int k = 0; k < s.keys; ++k) {
                EXPECT_EQ(ready(1.5, b, h, q, k), score(1.5, b, h, q, k));
                EXPECT_EQ(head(1.5f, b, h, q, k), score(1.5f, b, h, q, k));
              }
          }
      EXPECT_GE(workspace.bytes(), 2 * 7 * sizeof(float)) << "the second table is the workspace's";
    }
}

// A step of a long sequence pays for the distances that have a bucket of their own, not for its length.
TEST(RelativeBias, PreparedIsAsLongAsTheBucketsReach) {
  for (const bool bidirectional : {true, false}) {
    const RelativeBias score(random_table(8, 3), {.count = 8, .max_distance = 20, .bidirectional = bidirectional});
    const mha::CallShape step{.batch = 1, .heads = 3, .queries = 1, .keys = 500'000'001, .origin = 500'000'000};
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const auto ready = mha::prepared(score, step, frame);
    EXPECT_LT(workspace.bytes(), 100'000u);
    for (const int distance : {0, 1, 19, 20, 21, 22, 1000, 499'999'999})
      for (int h = 0; h < 3; ++h) {
        const int q = 500'000'000, k = q - distance;
        EXPECT_EQ(mha::at_head(ready, 0, h)(1.f, 0, h, q, k), score(1.f, 0, h, q, k)) << distance;
      }
  }
}

TEST(RelativeBias, KeepsItsTableAliveInWhatACallGets) {
  const auto ready = mha::prepared(RelativeBias(random_table(4, 1), {.count = 4, .max_distance = 4}),
                                   {.batch = 1, .heads = 1, .queries = 3, .keys = 3, .origin = 0});
  const auto table = random_table(4, 1);
  EXPECT_EQ(ready(0.f, 0, 0, 2, 1), table[1]);
}

TEST(RelativeBias, PassesDerivativesOn) {
  const RelativeBias score(std::vector<float>(32, 2.f));
  const auto s = mha::Dual<double>::variable(3);
  EXPECT_EQ(score(s, 0, 0, 4, 1).value, 5);
  EXPECT_EQ(score(s, 0, 0, 4, 1).derivative[0], 1);
}

std::string refusal(std::size_t size, const RelativeBuckets& buckets, int heads = 2) {
  return mha_test::message_of<mha::ShapeError>([&] {
    static_cast<void>(RelativeBias(std::vector<float>(size), buckets)
                          .prepared({.batch = 1, .heads = heads, .queries = 2, .keys = 2, .origin = 0}));
  });
}

TEST(RelativeBias, WantsBucketsThatFitTogether) {
  EXPECT_EQ(refusal(8, {.count = 4, .max_distance = 2}), "");
  EXPECT_EQ(refusal(6, {.count = 3, .max_distance = 9}), "RelativeBias: 3 buckets are too few, expected at least 4");
  EXPECT_EQ(refusal(2, {.count = 1, .max_distance = 9, .bidirectional = false}),
            "RelativeBias: 1 buckets are too few, expected at least 2");
  EXPECT_NE(refusal(0, {.count = 0}), "");
  EXPECT_NE(refusal(0, {.count = -8}), "");
  EXPECT_EQ(refusal(64, {.count = 32, .max_distance = 8}),
            "RelativeBias: max_distance 8 is not above 8, the distances with a bucket each");
}

TEST(RelativeBias, WantsATableOfBucketsTimesHeads) {
  EXPECT_EQ(refusal(63, {}), "RelativeBias: the table has 63 elements, expected 64: 32 buckets x 2 heads");
  EXPECT_EQ(refusal(64, {}, 3), "RelativeBias: the table has 64 elements, expected 96: 32 buckets x 3 heads");
  EXPECT_EQ(refusal(96, {}, 3), "");
}

TEST(RelativeBias, IsAScoreThatALayerMayOwn) { static_assert(mha::Score<RelativeBias> && !mha::Borrows<RelativeBias>); }

}  // namespace
