// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/policy/any_scaling.hpp>
#include <mha/policy/position.hpp>

#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::AnyScaling;
using mha::Halves;
using mha::Index;
using mha::Interleaved;
using mha::LinearScaling;
using mha::Llama3Scaling;
using mha::NtkScaling;
using mha::Rotary;
using mha::Unscaled;
using mha::YarnScaling;

mha::Tensor<double, 4> random_rows(const char* stream, int batch, int length, int heads, int dim) {
  support::Random random(stream);
  mha::Tensor<double, 4> x(batch, length, heads, dim);
  random.fill(x);
  return x;
}

/// base^(−2i/r), written another way.
double plain_frequency(double base, int i, int r) { return 1 / std::exp(std::log(base) * (2.0 * i / r)); }

/// Where coordinates a and b stand after they turned by an angle.
void turn(double& a, double& b, double angle) {
  const double x = a, y = b;
  a = x * std::cos(angle) - y * std::sin(angle);
  b = x * std::sin(angle) + y * std::cos(angle);
}

template <class R> std::string refusal(const R& rotary, Index head_dim) {
  return mha_test::message_of<mha::ShapeError>([&] { rotary.check(head_dim); });
}

TEST(Position, IsRecognisedByItsRole) {
  static_assert(mha::Position<mha::NoPosition> && mha::Position<Rotary<>> &&
                mha::Position<const Rotary<Interleaved, NtkScaling>&> && !mha::Position<Halves>);
}

TEST(Rotary, TurnsPairsByThePositionTimesTheFrequency) {
  constexpr int B = 2, L = 5, H = 3, D = 6;
  const auto x = random_rows("turns", B, L, H, D);
  for (const int first : {0, 7, -2}) {
    auto halves = x, pairs = x;
    Rotary<Halves>{}.apply(halves.view(), first);
    Rotary<Interleaved>{.base = 500}.apply(pairs.view(), first);
    for (int b = 0; b < B; ++b)
      for (int l = 0; l < L; ++l)
        for (int h = 0; h < H; ++h)
          for (int i = 0; i < D / 2; ++i) {
            double u = x(b, l, h, i), v = x(b, l, h, i + D / 2);
            turn(u, v, (first + l) * plain_frequency(10000, i, D));
            EXPECT_NEAR(halves(b, l, h, i), u, 1e-14);
            EXPECT_NEAR(halves(b, l, h, i + D / 2), v, 1e-14);
            u = x(b, l, h, 2 * i), v = x(b, l, h, 2 * i + 1);
            turn(u, v, (first + l) * plain_frequency(500, i, D));
            EXPECT_NEAR(pairs(b, l, h, 2 * i), u, 1e-14);
            EXPECT_NEAR(pairs(b, l, h, 2 * i + 1), v, 1e-14);
          }
  }
}

TEST(Rotary, ThePairingsDifferByTheKnownPermutation) {
  constexpr int D = 8;
  auto halves = random_rows("permutation", 1, 4, 2, D);
  mha::Tensor<double, 4> pairs(1, 4, 2, D);
  const auto place = [](int d) { return d < D / 2 ? 2 * d : 2 * (d - D / 2) + 1; };
  for (int l = 0; l < 4; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < D; ++d) pairs(0, l, h, place(d)) = halves(0, l, h, d);
  Rotary<Halves>{}.apply(halves.view(), 3);
  Rotary<Interleaved>{}.apply(pairs.view(), 3);
  for (int l = 0; l < 4; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < D; ++d) EXPECT_EQ(pairs(0, l, h, place(d)), halves(0, l, h, d));
}

TEST(Rotary, PartialLeavesTheTail) {
  constexpr int D = 7, R = 4;
  const auto x = random_rows("partial", 1, 3, 2, D);
  auto some = x;
  mha::Tensor<double, 4> head(1, 3, 2, R);
  for (int l = 0; l < 3; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < R; ++d) head(0, l, h, d) = x(0, l, h, d);
  Rotary<Halves>{.dims = R}.apply(some.view(), 2);
  Rotary<Halves>{}.apply(head.view(), 2);
  for (int l = 0; l < 3; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < D; ++d) EXPECT_EQ(some(0, l, h, d), d < R ? head(0, l, h, d) : x(0, l, h, d));
}

template <class R> void expect_relative(const R& rotary) {
  constexpr int D = 16;
  const auto q = random_rows("q", 1, 1, 1, D), k = random_rows("k", 1, 1, 1, D);
  const auto dot = [&](Index q_position, Index k_position) {
    auto a = q, b = k;
    rotary.apply(a.view(), q_position);
    rotary.apply(b.view(), k_position);
    double sum = 0;
    for (int d = 0; d < D; ++d) sum += a(0, 0, 0, d) * b(0, 0, 0, d);
    return sum;
  };
  for (const int distance : {0, 1, 5, -3})
    for (const int shift : {0, 1, 17, 5000}) EXPECT_NEAR(dot(distance + shift, shift), dot(distance, 0), 1e-10);
  EXPECT_GT(std::abs(dot(3, 0) - dot(0, 3)), 1e-6) << "the direction matters";
}

TEST(Rotary, DotProductsDependOnTheDistanceOnly) {
  expect_relative(Rotary<Halves>{});
  expect_relative(Rotary<Interleaved>{});
  expect_relative(Rotary<Halves>{.dims = 6});
  expect_relative(Rotary<Interleaved, LinearScaling>{.scaling = {.factor = 4.0}});
}

TEST(Rotary, EachSequenceHasItsFirstPosition) {
  const auto x = random_rows("first", 3, 2, 1, 4);
  const Index first[3] = {0, 9, -4};
  auto each = x;
  Rotary<>{}.apply(each.view(), mha::Origins(first));
  for (int b = 0; b < 3; ++b) {
    auto one = x;
    Rotary<>{}.apply(one.view(), first[b]);
    for (int l = 0; l < 2; ++l)
      for (int d = 0; d < 4; ++d) EXPECT_EQ(each(b, l, 0, d), one(b, l, 0, d));
  }
}

TEST(Rotary, FollowsStrides) {
  const auto x = random_rows("strides", 1, 3, 2, 4);
  auto rows = x;
  mha::Tensor<double, 4> memory(1, 2, 3, 4);
  const auto other = mha::view_bhld(memory.data(), 1, 2, 3, 4);
  for (int l = 0; l < 3; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 4; ++d) other(0, l, h, d) = x(0, l, h, d);
  Rotary<>{}.apply(rows.view(), 1);
  Rotary<>{}.apply(other, 1);
  for (int l = 0; l < 3; ++l)
    for (int h = 0; h < 2; ++h)
      for (int d = 0; d < 4; ++d) EXPECT_EQ(other(0, l, h, d), rows(0, l, h, d));
}

TEST(Rotary, ManyPairsAndRowsTurnByTheirOwnPosition) {
  constexpr int L = 45, H = 2, D = 150;  // 75 pairs: more than are turned at once, and no multiple of eight
  const auto x = random_rows("many pairs", 1, L, H, D);
  for (const int first : {-21, 0, 8191}) {
    auto halves = x, pairs = x;
    Rotary<Halves>{}.apply(halves.view(), first);
    Rotary<Interleaved>{}.apply(pairs.view(), first);
    for (int l = 0; l < L; ++l)
      for (int h = 0; h < H; ++h)
        for (int i = 0; i < D / 2; ++i) {
          double u = x(0, l, h, i), v = x(0, l, h, i + D / 2);
          turn(u, v, (first + l) * plain_frequency(10000, i, D));
          EXPECT_NEAR(halves(0, l, h, i), u, 1e-10) << first << " " << l << " " << i;
          EXPECT_NEAR(halves(0, l, h, i + D / 2), v, 1e-10);
          u = x(0, l, h, 2 * i), v = x(0, l, h, 2 * i + 1);
          turn(u, v, (first + l) * plain_frequency(10000, i, D));
          EXPECT_NEAR(pairs(0, l, h, 2 * i), u, 1e-10);
          EXPECT_NEAR(pairs(0, l, h, 2 * i + 1), v, 1e-10);
        }
  }
}

TEST(Rotary, ARowHasTheSameBitsAloneAndAmongOthers) {
  constexpr int L = 40, H = 3, D = 46;
  auto all = random_rows("alone", 1, L, H, D);
  auto alone = all;
  constexpr int first = 100;
  Rotary<>{}.apply(all.view(), first);
  for (int l = 0; l < L; ++l) {
    auto row = alone.view();
    row.data = &row(0, l, 0, 0);
    row.extent[1] = 1;
    Rotary<>{}.apply(row, first + l);
  }
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < H; ++h)
      for (int d = 0; d < D; ++d) EXPECT_EQ(all(0, l, h, d), alone(0, l, h, d)) << l;
}

TEST(Rotary, AnglesAreExactFarOut) {
  constexpr int far = 1000000;
  float x[2] = {1, 0};
  Rotary<>{.base = 10000}.apply(mha::view_blhd(x, 1, 1, 1, 2), far);
  EXPECT_EQ(x[0], static_cast<float>(std::cos(double{far})));
  EXPECT_EQ(x[1], static_cast<float>(std::sin(double{far})));
  mha::bfloat16 y[2] = {mha::bfloat16(1.f), mha::bfloat16(0.f)};
  Rotary<>{}.apply(mha::view_blhd(y, 1, 1, 1, 2), 2);
  EXPECT_EQ(float(y[1]), float(mha::bfloat16(static_cast<float>(std::sin(2.0)))));
}

/// The frequencies a rotary of this size turns by, read off (1, 0) at position 1; all below π.
template <class Scaling> std::vector<double> frequencies(double base, int dim, const Scaling& scaling) {
  std::vector<double> x(static_cast<std::size_t>(dim), 0.0), f;
  for (int i = 0; i < dim / 2; ++i) x[static_cast<std::size_t>(2 * i)] = 1;
  Rotary<Interleaved, Scaling>{.base = base, .scaling = scaling}.apply(mha::view_blhd(x.data(), 1, 1, 1, dim), 1);
  for (int i = 0; i < dim / 2; ++i)
    f.push_back(std::atan2(x[static_cast<std::size_t>(2 * i + 1)], x[static_cast<std::size_t>(2 * i)]));
  return f;
}

TEST(Rotary, LinearScalingDividesEveryFrequency) {
  const auto f = frequencies(10000, 8, LinearScaling{.factor = 2.5});
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / (plain_frequency(10000, i, 8) / 2.5), 1, 1e-12);
}

TEST(Rotary, NtkScalingStretchesTheSlowestPairAndKeepsTheFastest) {
  constexpr int D = 16;
  const auto f = frequencies(10000, D, NtkScaling{.factor = 8.0});
  EXPECT_DOUBLE_EQ(f.front(), 1);
  EXPECT_NEAR(f.back() / (plain_frequency(10000, D / 2 - 1, D) / 8), 1, 1e-12);
  const double base = 10000 * std::pow(8.0, 16.0 / 14.0);
  for (int i = 0; i < D / 2; ++i) EXPECT_NEAR(f[static_cast<std::size_t>(i)] / plain_frequency(base, i, D), 1, 1e-12);
  EXPECT_DOUBLE_EQ(frequencies(10000, 2, NtkScaling{.factor = 8.0}).front(), 1) << "one pair has nothing between";
}

TEST(Rotary, Llama3ScalingStretchesLongWavesOnly) {
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
TEST(Rotary, YarnScalingStretchesSlowPairsAndSharpens) {
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

/// All at once and row by row as a GPU does it: each pair is as long as its source times the magnitude; without a
/// position it does not turn. The gradient is multiplied alike.
TEST(Rotary, YarnScalingMultipliesWhatItTurns) {
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

TEST(Rotary, AnyScalingIsTheOneThatItHolds) {
  const auto expect_same = [](const auto& scaling) {
    const auto x = random_rows("any", 1, 5, 2, 16);
    auto own = x, any = x;
    using Scaling = std::remove_cvref_t<decltype(scaling)>;
    Rotary<Halves, Scaling>{.base = 500, .scaling = scaling}.apply(own.view(), 7);
    const Rotary<Halves, AnyScaling> held{.base = 500, .scaling = scaling};
    held.apply(any.view(), 7);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(any.data()[i], own.data()[i]);
    EXPECT_EQ(held.scaling, AnyScaling(scaling));
    EXPECT_TRUE(std::holds_alternative<Scaling>(held.scaling.one));
    held.check(16);
  };
  expect_same(Unscaled{});
  expect_same(LinearScaling{.factor = 4.0});
  expect_same(NtkScaling{.factor = 4.0});
  expect_same(Llama3Scaling{.factor = 4, .original_length = 64});
  expect_same(YarnScaling{.factor = 4.0, .original_length = 64.0});
  EXPECT_EQ(AnyScaling(), AnyScaling(Unscaled{}));
  EXPECT_NE(AnyScaling(LinearScaling{.factor = 4.0}), AnyScaling(NtkScaling{.factor = 4.0}));
  EXPECT_EQ(refusal(Rotary<Halves, AnyScaling>{.scaling = LinearScaling{.factor = -1.0}}, 8),
            "LinearScaling: factor is -1.000000, it must be a positive finite number");
}

TEST(Rotary, WantsAnEvenNumberOfCoordinatesWithinTheHead) {
  EXPECT_EQ(refusal(Rotary<>{}, 8), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 8}, 8), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 4}, 7), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 10}, 8), "Rotary: dims is 10 but the head size is 8");
  EXPECT_EQ(refusal(Rotary<>{.dims = -2}, 8), "Rotary: dims is -2 but the head size is 8");
  EXPECT_EQ(refusal(Rotary<Interleaved>{.dims = 3}, 8),
            "Rotary: 3 coordinates of 8 would turn, an even number is wanted");
  EXPECT_EQ(refusal(Rotary<>{}, 7), "Rotary: 7 coordinates of 7 would turn, an even number is wanted");
}

TEST(Rotary, WantsAPositiveFiniteBase) {
  EXPECT_EQ(refusal(Rotary<>{.base = 0}, 8), "Rotary: base is 0.000000, it must be a positive finite number");
  EXPECT_EQ(refusal(Rotary<>{.base = -2}, 8), "Rotary: base is -2.000000, it must be a positive finite number");
  EXPECT_NE(refusal(Rotary<>{.base = std::numeric_limits<double>::infinity()}, 8), "");
  EXPECT_NE(refusal(Rotary<>{.base = std::numeric_limits<double>::quiet_NaN()}, 8), "");
}

TEST(Rotary, WantsScalingsInRange) {
  EXPECT_EQ(refusal(Rotary<Halves, LinearScaling>{.scaling = {.factor = -1.0}}, 8),
            "LinearScaling: factor is -1.000000, it must be a positive finite number");
  EXPECT_EQ(refusal(Rotary<Halves, NtkScaling>{.scaling = {.factor = 0.0}}, 8),
            "NtkScaling: factor is 0.000000, it must be a positive finite number");
  const auto llama = [](double factor, double low, double high, double length) {
    return refusal(Rotary<Halves, Llama3Scaling>{.scaling = {factor, low, high, length}}, 8);
  };
  EXPECT_EQ(llama(8, 1, 4, 8192), "");
  EXPECT_EQ(llama(0, 1, 4, 8192), "Llama3Scaling: factor is 0.000000, it must be a positive finite number");
  EXPECT_EQ(llama(8, 1, 4, -1), "Llama3Scaling: original_length is -1.000000, it must be a positive finite number");
  EXPECT_EQ(llama(8, -1, 4, 8192), "Llama3Scaling: low_frequency is -1.000000, it must be at least 0");
  EXPECT_EQ(llama(8, 4, 4, 8192),
            "Llama3Scaling: low_frequency 4.000000 is not below a finite high_frequency, which is 4.000000");
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
            "YarnScaling: factor is 0.000000, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = -1.0}),
            "YarnScaling: original_length is -1.000000, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .slow = 0}),
            "YarnScaling: slow is 0.000000, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .fast = 1, .slow = 2}),
            "YarnScaling: slow 2.000000 is not below a finite fast, which is 1.000000");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0, .attention_factor = -1.0}),
            "YarnScaling: attention_factor is -1.000000, it must be a positive finite number");
  EXPECT_EQ(yarn({.factor = 4.0, .original_length = 64.0}, 1), "YarnScaling: base is 1.000000, it must be above 1");
  EXPECT_EQ(refusal(Rotary<Halves, NtkScaling>{.scaling = {.factor = 1e200}}, 4),
            "Rotary: base 10000.000000 is scaled to inf, it must stay a positive finite number");
}

TEST(Rotary, TurnsBackByTheSameAngles) {
  const mha::Rotary<mha::Interleaved> rotary{.base = 100, .dims = 4};
  mha::Tensor<double, 4> x(2, 3, 2, 6);
  double n = 0;
  for (double& value : x) value = std::sin(++n);
  const auto before = x;
  const auto run = [](const auto& items) { mha::detail::run_serially(items); };
  rotary.for_each_items(x.view(), mha::RowPositions{mha::Origins(70)}, run);
  EXPECT_GT(std::abs(x(0, 0, 0, 0) - before(0, 0, 0, 0)), 1e-3);
  rotary.for_each_items_back(x.view(), mha::RowPositions{mha::Origins(70)}, run);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x.data()[i], before.data()[i], 1e-14);
}

}  // namespace
