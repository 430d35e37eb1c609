// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/policy/position.hpp>

#include "message_of.hpp"
#include "random.hpp"
#include "rotary_checks.hpp"
#include "scratch.hpp"

namespace {

using mha::Halves;
using mha::Index;
using mha::Interleaved;
using mha::LinearScaling;
using mha::NtkScaling;
using mha::Rotary;
using mha::Unscaled;
using support::plain_frequency;
using support::random_rows;
using support::refusal;

/// Where coordinates a and b stand after they turned by an angle.
void turn(double& a, double& b, double angle) {
  const double x = a, y = b;
  a = x * std::cos(angle) - y * std::sin(angle);
  b = x * std::sin(angle) + y * std::cos(angle);
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
  const std::vector<Index> positions{0, 9, -4}, two{0, 9};
  auto listed = x;
  Rotary<>{}.apply(listed.view(), positions);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(listed.data()[i], each.data()[i]);
  const auto message = [&](const mha::Borrowed<Index>& p) {
    return support::message_of([&] { Rotary<>{}.apply(listed.view(), p); });
  };
  EXPECT_EQ(message(two), "Rotary: 2 positions for 3 sequences");
  auto common = x, in_braces = x;  // one position in braces is that of all
  Rotary<>{}.apply(common.view(), 5);
  Rotary<>{}.apply(in_braces.view(), {5});
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(in_braces.data()[i], common.data()[i]);
  EXPECT_EQ(message({nullptr, 3}), "Rotary: 0 positions for 3 sequences");
  EXPECT_EQ(message({first, 3, mha::Memory::device}),
            "Rotary: positions are in device memory, they are read on the host");
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(listed.data()[i], each.data()[i]);
}

// Of a ragged batch each sequence is turned as it is alone, and no row of it as one of the next.
TEST(Rotary, RaggedSequencesTurnAsEachAlone) {
  constexpr int rows = 45, H = 2, D = 6;
  const Index offsets[] = {0, 20, 20, 23, 45}, origins[] = {5, 7, 40, -3};
  const auto x = random_rows("ragged", 1, rows, H, D);
  const auto turn_all = [&](auto&& run) {
    auto turned = x;
    Rotary<Interleaved>{}.for_each_items(turned.view(), {mha::Origins(origins), offsets, 4, 22}, run);
    return turned;
  };
  const auto together = turn_all([](const auto& turn) { mha::detail::run_serially(turn); });
  const auto one_by_one = turn_all([](const auto& turn) {
    for (std::ptrdiff_t row = 0; row < turn.rows; ++row)
      for (Index column = 0; column < turn.columns; ++column) turn(row, column);
  });
  for (int b = 0; b < 4; ++b) {
    auto alone = x;
    Rotary<Interleaved>{}.apply(alone.view(), origins[b] - offsets[b]);
    for (Index l = offsets[b]; l < offsets[b + 1]; ++l)
      for (int h = 0; h < H; ++h)
        for (int d = 0; d < D; ++d) {
          EXPECT_NEAR(together(0, l, h, d), alone(0, l, h, d), 1e-14) << b << ' ' << l;
          EXPECT_NEAR(one_by_one(0, l, h, d), alone(0, l, h, d), 1e-14) << b << ' ' << l;
        }
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

TEST(Rotary, WantsAnEvenNumberOfCoordinatesWithinTheHead) {
  EXPECT_EQ(refusal(Rotary<>{}, 8), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 8}, 8), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 4}, 7), "");
  EXPECT_EQ(refusal(Rotary<>{.dims = 10}, 8), "Rotary: dims is 10 but the head size is 8");
  EXPECT_EQ(refusal(Rotary<>{.dims = -2}, 8), "Rotary: dims is -2 but the head size is 8");
  EXPECT_EQ(refusal(Rotary<Interleaved>{.dims = 3}, 8),
            "Rotary: 3 coordinates of 8 would turn, expected an even number");
  EXPECT_EQ(refusal(Rotary<>{}, 7), "Rotary: 7 coordinates of 7 would turn, expected an even number");
}

TEST(Rotary, WantsAPositiveFiniteBase) {
  EXPECT_EQ(refusal(Rotary<>{.base = 0}, 8), "Rotary: base is 0, it must be a positive finite number");
  EXPECT_EQ(refusal(Rotary<>{.base = -2}, 8), "Rotary: base is -2, it must be a positive finite number");
  EXPECT_NE(refusal(Rotary<>{.base = std::numeric_limits<double>::infinity()}, 8), "");
  EXPECT_NE(refusal(Rotary<>{.base = std::numeric_limits<double>::quiet_NaN()}, 8), "");
}

TEST(Rotary, TurnsNoRowsThatItDoesNotFitNorTheSameRowTwice) {
  auto x = random_rows("no fit", 2, 3, 1, 8);
  const auto before = x;
  const auto message = [](const auto& rotary, const mha::TensorView<double, 4>& rows) {
    return support::message_of([&] { rotary.apply(rows, 1); });
  };
  auto narrow = x.view(), repeated = x.view();
  narrow.extent[3] = 4;
  EXPECT_EQ(message(Rotary<>{.dims = 6}, narrow), "Rotary: dims is 6 but the head size is 4");
  EXPECT_EQ(message(Rotary<>{.base = 0}, narrow), "Rotary: base is 0, it must be a positive finite number");
  repeated.stride[0] = 0;
  EXPECT_EQ(message(Rotary<>{}, repeated),
            "Rotary: x overlaps itself: its axis batch has 2 elements and stride 0, expected memory of its own for "
            "each element");
  EXPECT_EQ(message(Rotary<>{}, mha::TensorView<double, 4>{nullptr, {1, 1, 1, 2}, {2, 2, 2, 1}}),
            "Rotary: x has 2 elements but its data is null");
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x.data()[i], before.data()[i]);
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

TEST(Rotary, AppliesBackTheGradientOfWhatItApplied) {
  // ⟨y, apply(x)⟩ = ⟨apply_back(y), x⟩, and with a scaling that lengthens too.
  const mha::Rotary<Halves, mha::YarnScaling> rotary{.base = 100, .scaling = {.factor = 4, .original_length = 8}};
  mha::Tensor<double, 4> x(2, 3, 2, 6), y(2, 3, 2, 6);
  double n = 0;
  for (double& value : x) value = std::sin(++n);
  for (double& value : y) value = std::cos(2 * ++n);
  const std::vector<Index> first{4, 9};
  auto turned = x, back = y;
  rotary.apply(turned.view(), first);
  rotary.apply_back(back.view(), first);
  EXPECT_NEAR(std::inner_product(y.begin(), y.end(), turned.begin(), 0.0),
              std::inner_product(back.begin(), back.end(), x.begin(), 0.0), 1e-12);
  auto second = y;
  rotary.apply_back(second.view(), mha::Origins(first.data()));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(second.data()[i], back.data()[i]);
  const std::vector<Index> one{4};
  EXPECT_EQ(support::message_of([&] { rotary.apply_back(second.view(), one); }), "Rotary: 1 positions for 2 sequences");
}

}  // namespace
