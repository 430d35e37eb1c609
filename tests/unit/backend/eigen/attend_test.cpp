// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/eigen/attend.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/backend/reference/reference.hpp>

#include "attend_case.hpp"
#include "compare.hpp"
#include "expect_right.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::MaskKind;
using support::Rows;
using support::ScoreKind;

constexpr MaskKind masks[] = {MaskKind::full,    MaskKind::causal, MaskKind::top_left, MaskKind::window,
                              MaskKind::padding, MaskKind::prefix, MaskKind::document, MaskKind::block_sparse,
                              MaskKind::dense,   MaskKind::sieve,  MaskKind::both,     MaskKind::either,
                              MaskKind::negated, MaskKind::none};
constexpr ScoreKind scores[] = {ScoreKind::soft_cap, ScoreKind::alibi, ScoreKind::bias,
                                ScoreKind::relative, ScoreKind::chain, ScoreKind::user};

template <class Case> void expect_right_by_eigen(Case& c) {
  mha::Workspace workspace;
  mha::EigenCpuWith<mha::Serial>{}.attend(c.call(), workspace);
  support::expect_right(c);
}

template <class T> class EigenAttend : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(EigenAttend, Scalars);

TYPED_TEST(EigenAttend, EveryMaskAgreesWithTheFormula) {
  support::Random random("masks by Eigen");
  constexpr Rows rows[] = {Rows::blhd, Rows::bhld, Rows::padded, Rows::odd, Rows::columns};
  for (const MaskKind mask : masks)
    for (int round = 0; round < 3; ++round) {
      support::AttendSizes s;
      s.batch = 1 + random.below(2);
      s.kv_heads = 1 + random.below(2);
      s.heads = s.kv_heads * (1 + random.below(3));
      s.queries = round == 0 ? 1 + random.below(4) : 1 + random.below(160);
      s.keys = round == 1 ? 1 + random.below(40) : 1 + random.below(320);
      s.dim = 1 + random.below(40);
      s.value_dim = 1 + random.below(40);
      s.rows = rows[random.below(5)];
      s.sink = random.chance(0.5);
      s.ragged = mask != MaskKind::document && mask != MaskKind::dense && mask != MaskKind::block_sparse && round == 2;
      s.run = random.chance(0.3) ? 7 : 0;
      if (mask == MaskKind::document) s.queries = s.keys;
      support::AttendCase<TypeParam> c(random, s, mask);
      expect_right_by_eigen(c);
    }
}

TYPED_TEST(EigenAttend, EveryScoreAgreesWithTheFormula) {
  support::Random random("scores by Eigen");
  for (const ScoreKind score : scores)
    for (const MaskKind mask : {MaskKind::full, MaskKind::causal, MaskKind::sieve}) {
      support::AttendSizes s;
      s.heads = 2;
      s.queries = 1 + random.below(130);
      s.keys = s.queries + random.below(200);
      s.dim = 1 + random.below(30);
      s.value_dim = 1 + random.below(30);
      s.sink = random.chance(0.5);
      support::AttendCase<TypeParam, support::Scores::one> c(random, s, mask, score);
      expect_right_by_eigen(c);
    }
}

TEST(EigenAttendTiles, FitTheStackOfEigen) {
  using mha::detail::eigen::stack_bytes;
  for (const Index dim : {1, 24, 64, 100, 128, 256, 300, 512})
    for (const Index queries : {1, 7, 119, 120, 121, 2048}) {
      mha::AttendCall<double, mha::ContiguousKv<double>, mha::Full, mha::NoScore> call{};
      call.shape = {1, 8, queries, 4096, 0};
      call.kv_heads = 2;
      call.head_dim = dim;
      call.value_dim = 16;
      const mha::detail::eigen::Tiling t(call);
      const auto bytes = [](Index rows, Index width) {
        return sizeof(double) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
      };
      EXPECT_LE(bytes(t.keys, dim), stack_bytes) << dim;
      EXPECT_LE(bytes(t.queries * t.heads, dim), stack_bytes) << dim;
      EXPECT_LE(bytes(t.queries * t.heads, t.keys), stack_bytes) << dim;
      EXPECT_GE(t.queries * t.heads, std::min(queries, 8)) << dim;
      EXPECT_EQ(t.tiles, std::int64_t{2} * t.head_tiles * t.query_tiles);
    }
}

/// Rows whose only visible logit is very small, very large, NaN or −∞, and values that are not finite.
TEST(EigenAttendNumbers, ExtremeLogitsAreNumbersAndNaNPropagates) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
                  lowest = std::numeric_limits<float>::lowest();
  mha::Tensor<float, 2> q(1, 1), k(40, 1), v(40, 2);
  q(0, 0) = 1;
  const auto logits = [&](float first, float others) {
    for (Index i = 0; i < 40; ++i) {
      k(i, 0) = i == 0 ? first : others;
      v(i, 0) = static_cast<float>(i + 1);
      v(i, 1) = -1;
    }
    mha::Tensor<float, 1> lse(1);
    const auto out = mha::attention<mha::EigenCpu>(q, k, v, mha::LogSumExp(lse));
    return std::vector<float>{out(0, 0), out(0, 1), lse(0)};
  };
  EXPECT_EQ(logits(-1e9f, -infinity), (std::vector<float>{1, -1, -1e9f}));
  EXPECT_EQ(logits(lowest, -infinity), (std::vector<float>{1, -1, lowest}));
  EXPECT_EQ(logits(1e30f, lowest), (std::vector<float>{1, -1, 1e30f}));
  EXPECT_EQ(logits(-infinity, -infinity), (std::vector<float>{0, 0, -infinity}));
  for (const float first : {nan, infinity})
    for (const float x : logits(first, -infinity)) EXPECT_NE(x, x) << first;
  for (const float x : logits(nan, 1)) EXPECT_NE(x, x);

  // A value behind a logit of −∞ does nothing; behind any other it is seen.
  logits(1, -infinity);
  v(5, 0) = nan;
  EXPECT_EQ(mha::attention<mha::EigenCpu>(q, k, v)(0, 0), 1.f);
  k(5, 0) = 0.5f;
  const auto seen = mha::attention<mha::EigenCpu>(q, k, v);
  EXPECT_NE(seen(0, 0), seen(0, 0));
  EXPECT_EQ(seen(0, 1), -1.f);
}

TEST(EigenAttendNumbers, LongDoubleAgreesWithTheReference) {
  support::Random random("long double by Eigen");
  mha::Tensor<long double, 4> q(2, 37, 4, 9), k(2, 90, 2, 9), v(2, 90, 2, 5);
  for (auto* t : {&q, &k, &v})
    for (long double& x : *t) x = static_cast<long double>(random.normal());
  const auto mine = mha::attention<mha::EigenCpu>(q, k, v, mha::Causal{}, mha::SoftCap{3});
  const auto expected = mha::attention<mha::Reference>(q, k, v, mha::Causal{}, mha::SoftCap{3});
  for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(double(mine.data()[i] - expected.data()[i]), 0, 1e-17);
}

// 1/√d in long double too, which its logits would else have in double.
TEST(EigenAttendNumbers, LongDoubleIsScaledInItsOwnPrecision) {
  mha::Tensor<long double, 4> q(1, 1, 1, 3), k(1, 2, 1, 3), v(1, 2, 1, 1);
  for (auto* t : {&q, &k, &v})
    for (long double& x : *t) x = 0;
  q(0, 0, 0, 0) = 1;
  k(0, 0, 0, 0) = 3;
  v(0, 0, 0, 0) = 1;
  const long double expected = 1 / (1 + std::exp(-std::sqrt(3.0L)));
  const auto precision = double(4 * std::numeric_limits<long double>::epsilon());
  EXPECT_NEAR(double(mha::attention<mha::EigenCpu>(q, k, v)(0, 0, 0, 0) - expected), 0, precision);
  EXPECT_NEAR(double(mha::attention<mha::Reference>(q, k, v)(0, 0, 0, 0) - expected), 0, precision);
}

}  // namespace
