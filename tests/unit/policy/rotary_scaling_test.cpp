// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/position.hpp>
#include <mha/policy/rotary_scaling.hpp>

#include "rotary_checks.hpp"

namespace {

using mha::Halves;
using mha::Index;
using mha::Interleaved;
using mha::LinearScaling;
using mha::Llama3Scaling;
using mha::LongRopeScaling;
using mha::NtkScaling;
using mha::Rotary;
using mha::YarnScaling;
using support::plain_frequency;
using support::random_rows;
using support::refusal;

/// The frequencies a rotary of this size turns by, read off (1, 0) at position 1; all below π.
template <class Scaling> std::vector<double> frequencies(double base, int dim, const Scaling& scaling) {
  std::vector<double> x(static_cast<std::size_t>(dim), 0.0), f;
  for (int i = 0; i < dim / 2; ++i) x[static_cast<std::size_t>(2 * i)] = 1;
  Rotary<Interleaved, Scaling>{.base = base, .scaling = scaling}.apply(mha::view_blhd(x.data(), 1, 1, 1, dim), 1);
  for (int i = 0; i < dim / 2; ++i)
    f.push_back(std::atan2(x[static_cast<std::size_t>(2 * i + 1)], x[static_cast<std::size_t>(2 * i)]));
  return f;
}

TEST(LinearScaling, DividesEveryFrequency) {
  const auto f = frequencies(10000, 8, LinearScaling{.factor = 2.5});
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / (plain_frequency(10000, i, 8) / 2.5), 1, 1e-12);
}

TEST(NtkScaling, StretchesTheSlowestPairAndKeepsTheFastest) {
  constexpr int D = 16;
  const auto f = frequencies(10000, D, NtkScaling{.factor = 8.0});
  EXPECT_DOUBLE_EQ(f.front(), 1);
  EXPECT_NEAR(f.back() / (plain_frequency(10000, D / 2 - 1, D) / 8), 1, 1e-12);
  const double base = 10000 * std::pow(8.0, 16.0 / 14.0);
  for (int i = 0; i < D / 2; ++i) EXPECT_NEAR(f[static_cast<std::size_t>(i)] / plain_frequency(base, i, D), 1, 1e-12);
  EXPECT_DOUBLE_EQ(frequencies(10000, 2, NtkScaling{.factor = 8.0}).front(), 1) << "one pair has nothing between";
}

TEST(Llama3Scaling, StretchesLongWavesOnly) {
  constexpr int D = 128;
  const Llama3Scaling scaling{.factor = 8, .low_frequency = 1, .high_frequency = 4, .original_length = 8192};
  const auto f = frequencies(500000, D, scaling);
  int kept = 0, stretched = 0, between = 0;
  for (int i = 0; i < D / 2; ++i) {
    const double plain = plain_frequency(500000, i, D), wave = 2 * std::numbers::pi / plain;
    double wanted = plain;
    if (wave > 8192.0 / 1) {
      wanted = plain / 8;
      ++stretched;
    } else if (wave >= 8192.0 / 4) {
      const double smooth = (8192 / wave - 1) / (4 - 1);
      wanted = (1 - smooth) * plain / 8 + smooth * plain;
      ++between;
    } else {
      ++kept;
    }
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / wanted, 1, 1e-10) << i;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

/// The formula of the paper: γ of the turns that a pair makes within the original length, unrounded and by pairs.
TEST(YarnScaling, StretchesSlowPairsAndSharpens) {
  constexpr int D = 64;
  constexpr double base = 10000, length = 4096, factor = 16, fast = 32, slow = 1;
  const YarnScaling scaling{.factor = factor, .original_length = length};
  const auto pair_of = [](double turns) {
    return D * std::log(length / (2 * std::numbers::pi * turns)) / (2 * std::log(base));
  };
  for (const bool rounded : {true, false}) {
    YarnScaling own = scaling;
    own.rounded = rounded;
    const auto f = frequencies(base, D, own);
    const double first = rounded ? std::floor(pair_of(fast)) : pair_of(fast),
                 last = rounded ? std::ceil(pair_of(slow)) : pair_of(slow);
    int kept = 0, stretched = 0, between = 0;
    for (int i = 0; i < D / 2; ++i) {
      const double plain = plain_frequency(base, i, D);
      double wanted = plain;
      if (i <= first) {
        ++kept;
      } else if (i >= last) {
        wanted = plain / factor;
        ++stretched;
      } else {
        const double share = (i - first) / (last - first);
        wanted = plain * (1 - share + share / factor);
        ++between;
      }
      EXPECT_NEAR(f[static_cast<std::size_t>(i)] / wanted, 1, 1e-10) << i << ' ' << rounded;
    }
    EXPECT_GT(kept, 0);
    EXPECT_GT(stretched, 0);
    EXPECT_GT(between, 0);
  }
  EXPECT_DOUBLE_EQ(scaling.magnitude(), 0.1 * std::log(factor) + 1);
  EXPECT_EQ((YarnScaling{.factor = 0.5, .original_length = length}.magnitude()), 1);
  EXPECT_EQ((YarnScaling{.factor = 16.0, .original_length = length, .attention_factor = 0.75}.magnitude()), 0.75);
}

// Where the pair that turns once lies behind the last one the share grows towards it all the same: as transformers has
// it, at most the number of coordinates less one.
TEST(YarnScaling, TheSlowestPairMayLieBehindTheLast) {
  constexpr int D = 8;
  const auto f = frequencies(10000, D, YarnScaling{.factor = 4.0, .original_length = 32768.0});
  // 32 turns: 8 ln(32768 / 64π) / (2 ln 10000) = 2.2; one: 3.7
  const double share[] = {0, 0, 0, 0.5};
  for (int i = 0; i < D / 2; ++i) {
    const double plain = plain_frequency(10000, i, D);
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / ((1 - share[i]) * plain + share[i] * plain / 4), 1, 1e-12) << i;
  }
}

// Where no pair turns within the original length the interval that the share grows over is the first pair alone: as
// transformers has it, that one keeps its frequency and all others are stretched.
TEST(YarnScaling, AnIntervalOfOnePairKeepsIt) {
  constexpr int D = 8;
  const YarnScaling scaling{.factor = 4.0, .original_length = 6.0};
  // One turn: 8 ln(6 / 2π) / (2 ln 10000) = -0.02, up to 0; 32 turns: far below.
  const auto f = frequencies(10000, D, scaling);
  EXPECT_DOUBLE_EQ(f[0], 1);
  for (int i = 1; i < D / 2; ++i)
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / (plain_frequency(10000, i, D) / 4), 1, 1e-12) << i;
}

// Of a head that turns in part the frequencies are those of a head of so many coordinates.
TEST(YarnScaling, CountsTheCoordinatesThatTurn) {
  constexpr int D = 24, r = 16;
  const YarnScaling scaling{.factor = 8.0, .original_length = 2048.0};
  auto x = random_rows("yarn in part", 1, 5, 1, D);
  mha::Tensor<double, 4> part(1, 5, 1, r);
  for (int l = 0; l < 5; ++l)
    for (int d = 0; d < r; ++d) part(0, l, 0, d) = x(0, l, 0, d);
  Rotary<Halves, YarnScaling>{.dims = r, .scaling = scaling}.apply(x.view(), 100);
  Rotary<Halves, YarnScaling>{.scaling = scaling}.apply(part.view(), 100);
  for (int l = 0; l < 5; ++l)
    for (int d = 0; d < r; ++d) EXPECT_EQ(x(0, l, 0, d), part(0, l, 0, d)) << l << ' ' << d;
}

TEST(LongRopeScaling, DividesEachFrequencyByItsFactor) {
  const LongRopeScaling scaling{.factors = {1, 1.5, 4, 0.5}};
  const auto f = frequencies(10000, 8, scaling);
  for (int i = 0; i < 4; ++i) {
    const auto n = static_cast<std::size_t>(i);
    EXPECT_NEAR(f[n] / (plain_frequency(10000, i, 8) / scaling.factors[n]), 1, 1e-12);
  }
  double x[4] = {3, 0, 0, 4};  // (3, 0) and (0, 4), neither turned at position 0
  Rotary<Interleaved, LongRopeScaling>{.scaling = {.factors = {1, 2}, .attention_factor = 1.25}}.apply(
      mha::view_blhd(x, 1, 1, 1, 4), 0);
  EXPECT_EQ(x[0], 3.75);
  EXPECT_EQ(x[3], 5);
}

/// All at once and row by row as a GPU does it: each pair is as long as its source times the magnitude; without a
/// position it does not turn. The gradient is multiplied alike.
TEST(YarnScaling, MultipliesWhatItTurns) {
  constexpr int L = 40, D = 12, r = 8;
  const Rotary<Interleaved, YarnScaling> rotary{
      .base = 500, .dims = r, .scaling = {.factor = 8.0, .original_length = 64.0, .attention_factor = 1.5}};
  const auto x = random_rows("yarn", 1, L, 2, D), other = random_rows("yarn, other", 1, L, 2, D);
  auto y = x, one_by_one = x, back = other;
  rotary.apply(y.view(), 3);
  rotary.for_each_items(one_by_one.view(), {mha::Origins(3)}, [](const auto& turn) {
    for (std::ptrdiff_t row = 0; row < turn.rows; ++row)
      for (Index column = 0; column < turn.columns; ++column) turn(row, column);
  });
  rotary.for_each_items_back(back.view(), {mha::Origins(3)}, [](const auto& turn) { mha::detail::run_serially(turn); });
  double forward = 0, backward = 0;  // (R x) · b = x · (Rᵀ b)
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < D; ++d) {
        const double found = y(0, l, h, d);
        EXPECT_NEAR(found, one_by_one(0, l, h, d), 1e-12);
        const double before = std::hypot(x(0, l, h, d), d < r ? x(0, l, h, d ^ 1) : 0);
        EXPECT_NEAR(d < r ? std::hypot(found, y(0, l, h, d ^ 1)) : std::abs(found), (d < r ? 1.5 : 1) * before, 1e-12);
        forward += found * other(0, l, h, d);
        backward += x(0, l, h, d) * back(0, l, h, d);
      }
  EXPECT_NEAR(forward, backward, 1e-10);
}

TEST(Scalings, AreInRange) {
  EXPECT_EQ(refusal(Rotary<Halves, LinearScaling>{.scaling = {.factor = -1.0}}, 8),
            "LinearScaling: factor is -1, it must be a positive finite number");
  EXPECT_EQ(refusal(Rotary<Halves, NtkScaling>{.scaling = {.factor = 0.0}}, 8),
            "NtkScaling: factor is 0, it must be a positive finite number");
  const auto llama = [](double factor, double low, double high, double length) {
    return refusal(Rotary<Halves, Llama3Scaling>{.scaling = {factor, low, high, length}}, 8);
  };
  EXPECT_EQ(llama(8, 1, 4, 8192), "");
  EXPECT_EQ(llama(0, 1, 4, 8192), "Llama3Scaling: factor is 0, it must be a positive finite number");
  EXPECT_EQ(llama(8, 1, 4, -1), "Llama3Scaling: original_length is -1, it must be a positive finite number");
  EXPECT_EQ(llama(8, -1, 4, 8192), "Llama3Scaling: low_frequency is -1, it must be at least 0");
  EXPECT_EQ(llama(8, 4, 4, 8192), "Llama3Scaling: low_frequency 4 is not below a finite high_frequency, which is 4");
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(llama(bad, 1, 4, 8192), "");
    EXPECT_NE(llama(8, bad, 4, 8192), "");
    EXPECT_NE(llama(8, 1, bad, 8192), "");
    EXPECT_NE(llama(8, 1, 4, bad), "");
    EXPECT_NE(refusal(Rotary<Halves, LinearScaling>{.scaling = {.factor = bad}}, 8), "");
    EXPECT_NE(refusal(Rotary<Halves, NtkScaling>{.scaling = {.factor = bad}}, 8), "");
  }
  const auto yarn = [](const YarnScaling& scaling, double base = 10000) {
    return refusal(Rotary<Halves, YarnScaling>{.base = base, .scaling = scaling}, 8);
  };
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0}), "");
  EXPECT_EQ(yarn({.factor = 0.0, .original_length = 64.0}),
            "YarnScaling: factor is 0, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = -1.0}),
            "YarnScaling: original_length is -1, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .slow = 0}),
            "YarnScaling: slow is 0, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .fast = 1, .slow = 2}),
            "YarnScaling: slow 2 is not below a finite fast, which is 1");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .attention_factor = -1.0}),
            "YarnScaling: attention_factor is -1, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0}, 1), "YarnScaling: base is 1, it must be above 1");
  const auto longrope = [](const LongRopeScaling& scaling, Index dims = 0) {
    return refusal(Rotary<Halves, LongRopeScaling>{.dims = dims, .scaling = scaling}, 8);
  };
  EXPECT_EQ(longrope({.factors = {1, 2, 3, 4}}), "");
  EXPECT_EQ(longrope({.factors = {1, 2, 3}}, 6), "");
  EXPECT_EQ(longrope({.factors = {1, 2, 3}}), "LongRopeScaling: 3 factors for 4 pairs that turn, expected one each");
  EXPECT_EQ(longrope({.factors = {1, 2, 3, 4}}, 6),
            "LongRopeScaling: 4 factors for 3 pairs that turn, expected one each");
  EXPECT_EQ(longrope({.factors = {1, 2, 0, 4}}), "LongRopeScaling: a factor is 0, it must be a positive finite number");
  EXPECT_EQ(longrope({.factors = {1, 2, 3, 4}, .attention_factor = -1}),
            "LongRopeScaling: attention_factor is -1, it must be a positive finite number");
  EXPECT_EQ(refusal(Rotary<Halves, NtkScaling>{.scaling = {.factor = 1e200}}, 4),
            "Rotary: base 10000 is scaled to inf, it must stay a positive finite number");
}

}  // namespace
