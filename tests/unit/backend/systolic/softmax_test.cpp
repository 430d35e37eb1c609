// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/softmax.hpp>
#include <mha/core/scalar.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::Index;

constexpr float hidden = -std::numeric_limits<float>::infinity();
constexpr Index lanes = 32, keys = 64;

/// A tile of rows with nothing seen, at one level.
struct Tile {
  std::vector<float> memory = std::vector<float>(5 * lanes, 0.f);
  std::vector<float> s = std::vector<float>(keys * lanes);
  std::vector<std::uint32_t> p = std::vector<std::uint32_t>(keys * lanes / 2);
  systolic::SoftmaxRows rows{};
  systolic::SoftmaxKernels kernels;

  Tile(mha::IsaLevel level, float slope, bool byte_lookup = systolic::has_byte_lookup())
      : kernels(systolic::softmax_kernels(level, byte_lookup)) {
    float* const at = memory.data();
    rows = {at, at + lanes, at + 2 * lanes, at + 3 * lanes, at + 4 * lanes, lanes, slope};
    std::fill_n(rows.anchor, lanes, hidden);
  }
  float weight(Index key, Index lane) const {
    const auto at = static_cast<std::size_t>((key / 32 * 2 + lane / 16) * 256 + key % 32 / 2 * 16 + lane % 16);
    return static_cast<float>(mha::bfloat16::from_bits(static_cast<std::uint16_t>(p[at] >> (key % 2 * 16))));
  }
  float& logit(Index key, Index lane) { return s[static_cast<std::size_t>(key * lanes + lane)]; }
};

template <class F> void at_every_level(F&& f) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    SCOPED_TRACE(mha::to_string(static_cast<mha::IsaLevel>(level)));
    f(static_cast<mha::IsaLevel>(level));
  }
}

TEST(TileSoftmax, WeightsAreRoundedAndSummedAsRounded) {
  at_every_level([](mha::IsaLevel level) {
    support::Random random("weights");
    Tile t(level, 0.7f);
    for (float& x : t.s) x = static_cast<float>(random.normal());
    t.logit(5, 3) = hidden;
    t.kernels.raise(t.s.data(), keys, &t.rows, false);
    EXPECT_FALSE(t.rows.any_unseen);
    EXPECT_FALSE(t.rows.any_rescale);
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_FALSE(t.rows.any_over);
    for (Index i = 0; i < lanes; ++i) {
      float highest = hidden, sum = 0;
      for (Index k = 0; k < keys; ++k) highest = std::max(highest, t.logit(k, i));
      EXPECT_EQ(t.rows.anchor[i], highest);
      for (Index k = 0; k < keys; ++k) {
        const double exact = std::exp2(double(0.7f) * (double(t.logit(k, i)) - double(highest)));
        // The anchor's own logarithm is rounded to whole steps too: half a step is 0.27 %.
        EXPECT_NEAR(double(t.weight(k, i)), exact, exact * (0.0073 + 0.0028));
        sum += t.weight(k, i);
      }
      EXPECT_EQ(t.rows.block_sum[i], sum);
    }
    EXPECT_EQ(t.weight(5, 3), 0.f);
  });
}

// A logit for every 1000th of an octave between the ends of the range, relative to an anchor of 0.
TEST(TileSoftmax, EveryWeightIsWithinItsBound) {
  at_every_level([](mha::IsaLevel level) {
    Tile t(level, 1.f);
    t.kernels.raise(t.s.data(), keys, &t.rows, false);
    double worst = 0;
    for (int first = -126'000; first < 10'000; first += keys * lanes) {
      for (Index i = 0; i < keys * lanes; ++i)
        t.s[static_cast<std::size_t>(i)] = 1e-3f * static_cast<float>(std::min(first + i, 9'999));
      t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
      for (Index k = 0; k < keys; ++k)
        for (Index i = 0; i < lanes; ++i)
          worst = support::maximum(worst, std::abs(double(t.weight(k, i)) / std::exp2(double(t.logit(k, i))) - 1));
    }
    EXPECT_LE(worst, 0.0073);
    EXPECT_GE(worst, 0.0065) << "a bound that nothing comes near is not known to be tested";
  });
}

TEST(TileSoftmax, WholePowersAreExactAndBothEndsKept) {
  at_every_level([](mha::IsaLevel level) {
    Tile t(level, 1.f);
    t.kernels.raise(t.s.data(), keys, &t.rows, false);
    for (Index k = 0; k < keys; ++k) t.logit(k, 2) = static_cast<float>(-2 * k);
    t.logit(0, 3) = -1e30f;
    t.logit(1, 3) = hidden;
    t.logit(2, 3) = -127.5f;
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_FALSE(t.rows.any_over);
    for (Index k = 0; k < keys; ++k) EXPECT_EQ(t.weight(k, 2), std::exp2(static_cast<float>(-2 * k)));
    for (Index k = 0; k < 3; ++k) EXPECT_EQ(t.weight(k, 3), 0.f);
  });
}

TEST(TileSoftmax, TheTableAndTheFormulaGiveTheSameBits) {
  if (!systolic::has_byte_lookup() || mha::best_isa() != mha::IsaLevel::avx512)
    GTEST_SKIP() << "this machine or compiler has no AVX512_VBMI byte lookup";
  support::Random random("table");
  Tile table(mha::IsaLevel::avx512, 0.3f, true), formula(mha::IsaLevel::avx512, 0.3f, false);
  for (float& x : table.s) x = static_cast<float>(20 * random.normal());
  formula.s = table.s;
  for (Tile* t : {&table, &formula}) {
    t->kernels.raise(t->s.data(), keys, &t->rows, false);
    t->kernels.weights(t->s.data(), keys, t->p.data(), &t->rows);
  }
  EXPECT_EQ(table.p, formula.p);
  EXPECT_EQ(table.memory, formula.memory);
}

// Neither NaN nor a logit above all weights may pass for a small weight: the row's block says so, and is done again.
TEST(TileSoftmax, NaNAndTooLargeLogitsAreNoticed) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  at_every_level([&](mha::IsaLevel level) {
    for (const float odd : {nan, -nan, infinity, 128.f, 129.f, 300.f, 70000.f, 1e9f, 3e38f})
      for (const Index key : {4, 7}) {
        Tile t(level, 1.f);
        t.kernels.raise(t.s.data(), keys, &t.rows, false);
        t.logit(key, 6) = odd;
        t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
        EXPECT_TRUE(t.rows.any_over) << odd;
        EXPECT_FALSE(t.rows.block_sum[6] <= systolic::largest_block_sum) << odd;
        EXPECT_EQ(t.rows.block_sum[5], 64.f);
        t.kernels.raise(t.s.data(), keys, &t.rows, true);
        t.kernels.guarded_weights(t.s.data(), keys, t.p.data(), &t.rows);
        if (std::isfinite(odd)) {
          EXPECT_EQ(t.weight(key, 6), 1.f);
          EXPECT_LE(t.rows.block_sum[6], 64.f);
        } else {
          EXPECT_TRUE(std::isnan(t.weight(key, 6))) << odd;
          EXPECT_TRUE(std::isnan(t.rows.block_sum[6])) << odd;
        }
        EXPECT_EQ(t.weight(key, 5), 1.f);
      }
  });
}

TEST(TileSoftmax, OnlyARowWithTooLargeASumMovesItsAnchor) {
  at_every_level([](mha::IsaLevel level) {
    Tile t(level, 1.f);
    t.kernels.raise(t.s.data(), keys, &t.rows, false);  // all logits 0
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    t.kernels.add(&t.rows);
    t.logit(9, 4) = 30.f;
    t.logit(9, 5) = 10.f;  // 2^10 is no reason
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    ASSERT_TRUE(t.rows.any_over);
    t.kernels.raise(t.s.data(), keys, &t.rows, true);
    EXPECT_TRUE(t.rows.any_rescale);
    for (Index i = 0; i < lanes; ++i) {
      EXPECT_EQ(t.rows.anchor[i], i == 4 ? 30.f : 0.f);
      EXPECT_EQ(t.rows.rescale[i], i == 4 ? 0x1p-30f : 1.f);
      EXPECT_EQ(t.rows.sum[i], i == 4 ? 64 * 0x1p-30f : 64.f);
    }
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_FALSE(t.rows.any_over);
    EXPECT_EQ(t.weight(9, 4), 1.f);
    EXPECT_EQ(t.weight(9, 5), 1024.f);
  });
}

TEST(TileSoftmax, RowsThatSeeNothingStayUnseen) {
  at_every_level([](mha::IsaLevel level) {
    Tile t(level, 1.f);
    for (Index k = 0; k < keys; ++k) t.logit(k, 7) = hidden;
    t.kernels.raise(t.s.data(), keys, &t.rows, false);
    EXPECT_TRUE(t.rows.any_unseen);
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_EQ(t.rows.anchor[7], hidden);
    EXPECT_EQ(t.rows.block_sum[7], 0.f);
    EXPECT_EQ(t.rows.block_sum[8], 64.f);
  });
}

TEST(TileSoftmax, FarAnchorsAreSubtractedFirst) {
  at_every_level([](mha::IsaLevel level) {
    Tile t(level, 1.442695f);
    for (float& x : t.s) x = -1e30f;
    for (Index k = 0; k < keys; ++k) t.logit(k, 0) = static_cast<float>(k % 2);
    t.kernels.raise(t.s.data(), keys, &t.rows, false);
    ASSERT_TRUE(t.rows.any_far);
    t.kernels.guarded_weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_EQ(t.rows.block_sum[1], 64.f);
    const float mixed = t.rows.block_sum[0];
    t.kernels.weights(t.s.data(), keys, t.p.data(), &t.rows);
    EXPECT_EQ(t.rows.block_sum[0], mixed) << "a near row is the same in both";
  });
}

TEST(TileSoftmax, RescalingFlushesWhatAUnitWouldNotRead) {
  at_every_level([](mha::IsaLevel level) {
    std::vector<float> o(lanes, 0x1p-120f), rescale(lanes, 0.5f);
    rescale[3] = 0x1p-10f;
    rescale[5] = 1.f;
    o[5] = 0x1p-140f;
    systolic::softmax_kernels(level).rescale(o.data(), 1, rescale.data(), lanes);
    EXPECT_EQ(o[3], 0.f);
    EXPECT_EQ(o[4], 0x1p-121f);
    EXPECT_EQ(o[5], 0x1p-140f) << "a row that is not rescaled";
  });
}

}  // namespace
