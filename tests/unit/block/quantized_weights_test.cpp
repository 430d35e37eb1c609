// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/quantized_weights.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "every_isa.hpp"
#include "four_bits.hpp"
#include "linear_oracle.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"
#include "random.hpp"
#include "strided_matrix.hpp"

namespace {

using mha::BorrowedLinear;
using mha::Gated;
using mha::Identity;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using support::Bent;
using support::rounded_weights;
using support::Rows;
using SerialCpu = mha::CpuWith<mha::Serial>;

static_assert(mha::QuantizesWeights<mha::Cpu, float, float> && mha::QuantizesWeights<mha::Cpu, float, mha::half> &&
              mha::QuantizesWeights<SerialCpu, float, mha::bfloat16>);
static_assert(!mha::QuantizesWeights<mha::Cpu, double, double> && !mha::QuantizesWeights<mha::Cpu, double, mha::half> &&
              !mha::QuantizesWeights<mha::Reference, float, float> &&
              !mha::QuantizesWeights<mha::Systolic<>, float, mha::bfloat16> &&
              !mha::QuantizesWeights<mha::Cuda, float, float>);
static_assert(mha::QuantizesWeights<mha::Cpu, float, float, mha::scaled_int4> &&
              mha::QuantizesWeights<mha::Cpu, float, mha::half, mha::scaled_int4> &&
              mha::QuantizesWeights<SerialCpu, float, mha::bfloat16, mha::scaled_int4>);
static_assert(!mha::QuantizesWeights<mha::Cpu, double, double, mha::scaled_int4> &&
              !mha::QuantizesWeights<mha::Cpu, float, float, mha::half> &&
              !mha::QuantizesWeights<mha::Cpu, float, float, float> &&
              !mha::QuantizesWeights<mha::Reference, float, float, mha::scaled_int4> &&
              !mha::QuantizesWeights<mha::Systolic<>, float, float, mha::scaled_int4> &&
              !mha::QuantizesWeights<mha::Cuda, float, float, mha::scaled_int4>);

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
                smallest = std::numeric_limits<float>::denorm_min();

/// Weights of W in matrices of any layout, of columns whose sizes differ, zeros and tiny numbers among them.
template <class W> struct Weights {
  support::StridedMatrix<W> weight, gate;
  Tensor<W, 1> bias, gate_bias;
  bool has_bias, has_gate;

  Weights(support::Random& random, Index in, Index out, bool biases, bool gated)
      : weight(support::layouts[random.below(5)], in, out),
        gate(support::layouts[random.below(5)], in, out),
        bias(out),
        gate_bias(out),
        has_bias(biases),
        has_gate(gated) {
    for (auto* w : {&weight, &gate})
      for (Index j = 0; j < out; ++j) {
        const double size = std::exp2(random.uniform(-4, 0));
        for (Index i = 0; i < in; ++i)
          w->view(i, j) = random.chance(0.05) ? W(random.chance(0.5) ? 0.0f : smallest)
                                              : support::Random::rounded<W>(random.normal() * size);
      }
    random.fill(bias);
    random.fill(gate_bias);
  }
  TensorView<const W, 2> matrix() const { return weight.view; }
  TensorView<const W, 2> gates() const { return gate.view; }

  BorrowedLinear<W> borrowed() const {
    BorrowedLinear<W> w{.weight = matrix()};
    if (has_bias) w.bias = bias;
    if (has_gate) w.gate = gates();
    if (has_gate && has_bias) w.gate_bias = gate_bias;
    return w;
  }
};

/// The numbers that these become in Q, which a Linear of T borrows.
template <class Q, class T> struct Rounded {
  Tensor<T, 2> weight, gate;
  Tensor<T, 1> bias, gate_bias;

  template <class W>
  explicit Rounded(const Weights<W>& w)
      : weight(rounded_weights<Q, T>(w.matrix())),
        gate(rounded_weights<Q, T>(w.gates())),
        bias(w.bias.extent(0)),
        gate_bias(w.bias.extent(0)) {
    for (Index j = 0; j < bias.extent(0); ++j) bias(j) = T(w.bias(j)), gate_bias(j) = T(w.gate_bias(j));
  }
  template <class L> void lend(L& linear, bool gated) const {
    BorrowedLinear<T> w{.weight = weight};
    if (linear.config().bias) w.bias = bias;
    if (gated) w.gate = gate;
    if (gated && linear.config().bias) w.gate_bias = gate_bias;
    linear.borrow(w);
  }
};

/// One call of T on B by weights of W, of shapes and strides drawn, against loops in double and the bits of the rounded
/// numbers in T.
template <class Q, class B, class T, class W, class F> void expect_right(support::Random& random, Index longest) {
  constexpr bool gated = mha::detail::is_gated<F>;
  const Index batch = 1 + random.below(3), length = 1 + random.below(longest), in = 1 + random.below(300),
              out = 1 + random.below(120);
  const mha::LinearConfig config{.inputs = in, .outputs = out, .bias = random.chance(0.7)};
  mha::Linear<T, B, F> linear(config), same(config);
  auto weights = std::make_unique<Weights<W>>(random, in, out, config.bias, gated);
  const Rounded<Q, T> rounded(*weights);
  linear.template quantize<Q>(weights->borrowed());
  weights.reset();
  rounded.lend(same, gated);
  Rows<T> x(support::lies[random.below(5)], batch, length, in), y(support::lies[random.below(5)], batch, length, out),
      r(support::lies[random.below(5)], batch, length, out);
  x.draw(random);
  r.draw(random);
  Tensor<T, 3> expected(batch, length, out);
  const bool adds = random.chance(0.5);
  if (adds) {
    linear(x.read(), mha::residual(r.read()), mha::into(y.view));
    same(x.read(), mha::residual(r.read()), mha::into(expected));
  } else {
    linear(x.read(), mha::into(y.view));
    same(x.read(), mha::into(expected));
  }
  support::Worst worst;
  std::size_t other_bits = 0;
  y.each([&](Index b, Index l, Index j) {
    auto element = support::linear_oracle(x.read(), same.parameters(), same.activation(), b, l, j,
                                          support::operand_error<B, T>(), support::zero_below<B>());
    if (adds) element.value += support::to_double(r.view(b, l, j));
    const double bound = element.error + 4 * support::unit_roundoff<T>() * std::abs(element.value);
    worst.see(support::to_double(y.view(b, l, j)), element.value, bound, {b, l, j});
    other_bits += support::bits(y.view(b, l, j)) != support::bits(expected(b, l, j)) ? 1u : 0u;
  });
  EXPECT_LE(worst.error(), 1) << worst.text() << ", in " << in << ", out " << out;
  EXPECT_EQ(other_bits, 0u) << "in " << in << ", out " << out << ", rows " << batch * length;
  EXPECT_EQ(y.spoilt(), 0u);
}

template <class Q, class B, class T, class W> void expect_right_with_every_activation(int rounds) {
  support::Random random(testing::UnitTest::GetInstance()->current_test_info()->test_suite_name());
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const Index longest = round % 3 == 0 ? 1 : round % 3 == 1 ? 20 : 90;
    expect_right<Q, B, T, W, Identity>(random, longest);
    expect_right<Q, B, T, W, Bent>(random, longest);
    expect_right<Q, B, T, W, Gated<Bent>>(random, longest);
  }
}

/// Weights of W that are rounded to Q.
template <class Q_, class W_> struct As {
  using Q = Q_;
  using W = W_;
  using InDouble = std::conditional_t<std::is_same_v<W, float>, double, W>;  ///< W, or what a Linear of double has
};
template <class Case> class QuantizedWeights : public testing::Test {};
using Cases =
    testing::Types<As<mha::scaled_int8, float>, As<mha::scaled_int8, mha::half>, As<mha::scaled_int8, mha::bfloat16>,
                   As<mha::scaled_int4, float>, As<mha::scaled_int4, mha::half>, As<mha::scaled_int4, mha::bfloat16>>;
TYPED_TEST_SUITE(QuantizedWeights, Cases, );

TYPED_TEST(QuantizedWeights, AgreeWithLoopsAndWithRoundedOnesAtEveryLevel) {
  support::at_every_isa(
      [] { expect_right_with_every_activation<typename TypeParam::Q, mha::Cpu, float, typename TypeParam::W>(6); });
}
TYPED_TEST(QuantizedWeights, AgreeOnOtherBackendsAndScalars) {
  expect_right_with_every_activation<typename TypeParam::Q, SerialCpu, float, typename TypeParam::W>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::Cpu, double, typename TypeParam::InDouble>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::Reference, float, typename TypeParam::W>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::Reference, double, typename TypeParam::InDouble>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::EigenCpu, float, typename TypeParam::W>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::Systolic<>, float, typename TypeParam::W>(2);
  expect_right_with_every_activation<typename TypeParam::Q, mha::Systolic<mha::AmxArray, mha::HighestPrecision>, float,
                                     typename TypeParam::W>(2);
  expect_right_with_every_activation<typename TypeParam::Q, support::PlainBackend, float, typename TypeParam::W>(2);
}

// A panel and what is left of one, panels side by side, whole blocks of the depth and what is left; few rows, which
// meet the integers, and many, for which a panel is widened.
TYPED_TEST(QuantizedWeights, HaveTheBitsOfRoundedOnesAroundEveryBlock) {
  using Q = typename TypeParam::Q;
  support::Random random("blocks of integers");
  const mha::Cpu threads(mha::ThreadPool(3)), alone(mha::ThreadPool(1));
  constexpr Index depths[] = {1, 31, 33, 255, 256, 257, 600}, widths[] = {47, 48, 49, 191, 192, 193, 200};
  for (std::size_t d = 0; d < std::size(depths); ++d)
    for (std::size_t w = d % 3; w < std::size(widths); w += 3) {  // every third pair
      const Index depth = depths[d], columns = widths[w];
      const Weights<typename TypeParam::W> weights(random, depth, columns, true, false);
      const Rounded<Q, float> rounded(weights);
      const mha::LinearConfig config{.inputs = depth, .outputs = columns};
      mha::Linear<float> linear(config), same(config);
      linear.template quantize<Q>(weights.borrowed());
      rounded.lend(same, false);
      Tensor<float, 2> x(140, depth);
      random.fill(x);
      support::at_every_isa([&] {
        const auto all = same(x);
        for (const Index rows : {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 140})
          for (const mha::Cpu* cpu : {&threads, &alone}) {
            Tensor<float, 2> y(rows, columns);
            support::poison_all(y);
            linear(mha::view(std::as_const(x).data(), rows, depth), mha::into(y), *cpu);
            std::size_t differing = 0;
            for (Index i = 0; i < rows; ++i)
              for (Index j = 0; j < columns; ++j)
                differing += support::bits(y(i, j)) != support::bits(all(i, j)) ? 1u : 0u;
            ASSERT_EQ(differing, 0u) << rows << " rows, " << depth << " inputs, " << columns << " outputs";
          }
      });
    }
}

// The unit vectors show the numbers that a call multiplies by.
template <class W> void expect_numbers_of_quantized_rows() {
  support::Random random("numbers in 8 bits");
  constexpr Index in = 530, out = 50;
  const Weights<W> weights(random, in, out, false, false);
  mha::Linear<float> linear({.inputs = in, .outputs = out, .bias = false});
  linear.quantize(weights.borrowed());
  Tensor<float, 2> x(in, in);
  for (Index i = 0; i < in; ++i) x(i, i) = 1;
  const auto y = linear(x);
  for (Index j = 0; j < out; ++j)
    for (Index begin = 0; begin < in; begin += mha::weights_per_scale<mha::scaled_int8>) {
      const Index count = std::min(in - begin, mha::weights_per_scale<mha::scaled_int8>);
      std::vector<W> column(static_cast<std::size_t>(count));
      for (Index i = 0; i < count; ++i) column[static_cast<std::size_t>(i)] = weights.matrix()(begin + i, j);
      std::vector<mha::scaled_int8> row(static_cast<std::size_t>(mha::row_elements<mha::scaled_int8>(count)));
      mha::scaled_int8* const integers = row.data() + mha::row_lead<mha::scaled_int8>;
      mha::quantize_row(column.data(), count, integers);
      std::vector<float> read(column.size());
      mha::read_row(integers, count, read.data());
      const double half_a_step = 127.0 * support::to_double(mha::row_scale(integers)) / 254 * 1.0001;
      for (Index i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(y(begin + i, j), read[at]) << begin + i << ", " << j;
        ASSERT_LE(std::abs(support::to_double(read[at]) - support::to_double(column[at])), half_a_step)
            << begin + i << ", " << j;
      }
    }
}

TEST(QuantizedNumbers, AreThoseOfQuantizedRowsAndNotFarFromTheirs) {
  expect_numbers_of_quantized_rows<float>();
  expect_numbers_of_quantized_rows<mha::half>();
  expect_numbers_of_quantized_rows<mha::bfloat16>();
}

// What is said of 4 bits, whatever the formula.
TYPED_TEST(QuantizedWeights, InFourBitsAreNotFarFromTheirs) {
  using W = typename TypeParam::W;
  support::Random random("numbers in 4 bits");
  constexpr Index in = 530, out = 50;
  const Weights<W> weights(random, in, out, false, false);
  mha::Linear<float> linear({.inputs = in, .outputs = out, .bias = false});
  linear.template quantize<mha::scaled_int4>(weights.borrowed());
  Tensor<float, 2> x(in, in);
  for (Index i = 0; i < in; ++i) x(i, i) = 1;
  const auto y = linear(x);
  const auto number = [&](Index i, Index j) { return support::to_double(static_cast<float>(weights.matrix()(i, j))); };
  for (Index j = 0; j < out; ++j)
    for (Index begin = 0; begin < in; begin += 32) {
      const Index end = std::min(in, begin + 32);
      double farthest = 0;
      for (Index i = begin; i < end; ++i)
        if (std::abs(number(i, j)) > std::abs(farthest)) farthest = number(i, j);
      const double s = std::abs(farthest) / 8 * (1 + 1.0 / 256);  // as bfloat16 may round it
      for (Index i = begin; i < end; ++i) {
        const bool clipped = number(i, j) * farthest < 0 && std::abs(number(i, j)) > 6.9 * s;
        ASSERT_LE(std::abs(support::to_double(y(i, j)) - number(i, j)), clipped ? 1.04 * s : s / 2)
            << i << ", " << j << ": " << number(i, j) << " beside " << farthest;
      }
    }
}

TYPED_TEST(QuantizedWeights, OfASpecialNumberSpoilTheirOwnBlockOfTheirOwnColumnAlone) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  constexpr Index in = 301, out = 60;
  constexpr bool eight = std::is_same_v<Q, mha::scaled_int8>;
  Tensor<W, 2> weight(in, out);
  for (W& w : weight) w = W(0.5f);
  weight(3, 7) = W(inf), weight(9, 50) = W(nan), weight(255, 0) = W(-inf), weight(256, 59) = W(-nan);
  for (Index i = 0; i < in; ++i) {
    weight(i, 20) = W(0.0f);
    weight(i, 21) = W(i % 2 == 0 ? (eight ? 0.9e-30f : 0.9e-20f) : -smallest);
    weight(i, 22) = W(i < 256 ? smallest : 0.5f);
  }
  const auto rounded = rounded_weights<Q, float>(std::as_const(weight).view());
  support::at_every_isa([&] {
    mha::Linear<float> linear({.inputs = in, .outputs = out, .bias = false});
    linear.template quantize<Q>(BorrowedLinear<W>{.weight = weight});
    for (const Index rows : {in, Index{8}, Index{1}})
      for (const Index first : {Index{0}, Index{250}}) {
        if (first + rows > in) continue;
        Tensor<float, 2> x(rows, in);
        for (Index i = 0; i < rows; ++i) x(i, first + i) = 1;
        const auto y = linear(x);
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < out; ++j) {
            // A number times 0 counts too, and that is NaN if it is.
            const bool spoilt = j == 7 || j == 50 || j == 0 || j == 59;
            ASSERT_EQ(std::isnan(y(i, j)), spoilt) << j;
            if (spoilt) continue;
            ASSERT_EQ(y(i, j), rounded(first + i, j)) << first + i << ", " << j;
          }
      }
  });
  EXPECT_TRUE(std::isnan(rounded(0, 7)) && rounded(256, 7) == 0.5f && rounded(0, 59) == 0.5f);
  EXPECT_TRUE(rounded(0, 20) == 0 && rounded(0, 21) == 0 && rounded(1, 21) == 0 && rounded(0, 22) == 0);
}

/// Of one matrix by one backend.
template <class Q, class B, class T> void expect_extremes() {
  constexpr float step = std::is_same_v<Q, mha::scaled_int8> ? 1.0f / 127 : 1.0f / 8;
  constexpr float least = std::is_same_v<Q, mha::scaled_int8> ? 1.01e-30f : 1.01e-20f;
  constexpr Index in = 3, out = 5;
  Tensor<T, 2> weight(in, out);
  const float largest = std::numeric_limits<float>::max();
  for (Index i = 0; i < in; ++i) {
    weight(i, 0) = T(i == 0 ? largest : i == 1 ? -3.4e38f : 1.7e38f);
    weight(i, 1) = T(i == 0 ? 1.0f : 0.5f);
    weight(i, 2) = i == 0 && sizeof(T) > 4 ? T(1e300) : T(2);
    weight(i, 3) = T(i == 0 ? -0.0f : 0.0f);
    weight(i, 4) = T(i == 0 ? least : -smallest);
  }
  mha::Linear<T, B> linear({.inputs = in, .outputs = out, .bias = false});
  linear.template quantize<Q>({.weight = weight});
  Tensor<T, 2> x(in, in);
  for (Index i = 0; i < in; ++i) x(i, i) = 1;
  const auto y = linear(x);
  for (const Index i : {0, 1, 2}) {
    EXPECT_TRUE(std::isfinite(y(i, 0)));
    EXPECT_NEAR(y(i, 0) / weight(i, 0), 1, 1.3 * step) << B::name;
    EXPECT_NEAR(y(i, 1), weight(i, 1), step / 2) << B::name;
    EXPECT_EQ(std::isnan(y(i, 2)), sizeof(T) > 4) << B::name << ": a number beyond those of float";
    EXPECT_EQ(y(i, 3), T(0)) << B::name;
  }
  EXPECT_NEAR(y(0, 4) / least, 1, step < 0.1f ? 1e-6 : 1.0 / 256) << B::name;
  EXPECT_EQ(y(1, 4), T(0)) << B::name;
}

template <class Q> void expect_extremes_on_every_backend() {
  expect_extremes<Q, mha::Cpu, float>();
  expect_extremes<Q, mha::Cpu, double>();
  expect_extremes<Q, mha::Reference, float>();
  expect_extremes<Q, mha::Reference, double>();
  expect_extremes<Q, mha::EigenCpu, double>();
}
TEST(QuantizedNumbers, AreFiniteOfTheLargestAndZeroOfTheSmallest) {
  expect_extremes_on_every_backend<mha::scaled_int8>();
  expect_extremes_on_every_backend<mha::scaled_int4>();
}

/// round_weights() of a matrix in memory of any layout.
template <class Q, class T> void expect_rounded_in_place() {
  support::Random random("rounded in place");
  for (const support::Layout layout : support::layouts) {
    if (layout == support::Layout::overlapping) continue;
    for (const Index depth : {1, 2, 31, 32, 33, 63, 255, 256, 257, 600}) {
      support::StridedMatrix<T> matrix(layout, depth, 5);
      for (Index i = 0; i < depth; ++i)
        for (Index j = 0; j < 5; ++j)
          matrix.view(i, j) = static_cast<T>(random.normal() * std::exp2(random.uniform(-40, 40)));
      if (depth > 1) matrix.view(0, 3) = -inf, matrix.view(depth - 1, 4) = nan;
      const auto before = matrix.memory;
      const auto expected = rounded_weights<Q, T>(TensorView<const T, 2>(matrix.view));
      mha::detail::round_weights<Q>(matrix.view);
      for (Index i = 0; i < depth; ++i)
        for (Index j = 0; j < 5; ++j) {
          T& x = matrix.view(i, j);
          ASSERT_TRUE(x == expected(i, j) || (std::isnan(x) && std::isnan(expected(i, j))))
              << i << ", " << j << ": " << x << " for " << expected(i, j);
          x = support::poison<T>();
        }
      for (std::size_t i = 0; i < before.size(); ++i)
        ASSERT_EQ(support::bits(matrix.memory[i]), support::bits(support::poison<T>())) << "beside the matrix";
    }
  }
}

TEST(RoundWeights, RoundsColumnsInBlocks) {
  expect_rounded_in_place<mha::scaled_int8, float>();
  expect_rounded_in_place<mha::scaled_int8, double>();
  expect_rounded_in_place<mha::scaled_int4, float>();
  expect_rounded_in_place<mha::scaled_int4, double>();
}

TEST(RoundWeights, ToEightBitsRoundsToNearestEven) {
  Tensor<float, 2> m(300, 2);
  m(0, 0) = 127, m(1, 0) = 0.5f, m(2, 0) = 1.5f, m(3, 0) = -2.5f, m(4, 0) = 126.5f, m(255, 0) = 0.49f;
  m(256, 0) = 254, m(257, 0) = 1, m(258, 0) = 3, m(259, 0) = -5;  // a scale of 2
  mha::detail::round_weights<mha::scaled_int8>(m.view());
  EXPECT_EQ(m(0, 0), 127);
  EXPECT_EQ(m(1, 0), 0);
  EXPECT_EQ(m(2, 0), 2);
  EXPECT_EQ(m(3, 0), -2);
  EXPECT_EQ(m(4, 0), 126);
  EXPECT_EQ(m(255, 0), 0);
  EXPECT_EQ(m(256, 0), 254);
  EXPECT_EQ(m(257, 0), 0);
  EXPECT_EQ(m(258, 0), 4);
  EXPECT_EQ(m(259, 0), -4);
  EXPECT_EQ(m(0, 1), 0);
}

// By hand: a scale is -1/8 of the farthest, of equals the first, and halves go to the even integer.
TEST(RoundWeights, ToFourBitsGivesTheFarthestEightSteps) {
  Tensor<float, 2> m(64, 6);
  m(0, 0) = 8, m(1, 0) = -8, m(2, 0) = -7.4f, m(3, 0) = 7.6f, m(4, 0) = 0.5f, m(5, 0) = 1.5f, m(6, 0) = -2.5f;
  m(7, 0) = 6.5f, m(31, 0) = -6.5f, m(8, 0) = 0.499f;
  m(0, 1) = 7.9f, m(30, 1) = -8, m(31, 1) = 8;
  // 3 steps of 5 / 2 between two, whose reciprocal is no float.
  m(0, 2) = -24, m(1, 2) = 7.5f, m(2, 2) = 4.5f, m(3, 2) = 10.5f, m(4, 2) = 19.5f, m(5, 2) = -4.5f, m(6, 2) = 25;
  m(6, 2) = 22.5f, m(7, 2) = 23.9f;
  // A block does not see the next one, nor another column.
  m(31, 3) = 8, m(32, 3) = 1000, m(30, 3) = 3;
  // The scale is rounded to 8 significant bits: 257 / 256 to 1, and 259 / 256 to 1 + 1 / 64.
  m(0, 4) = -8 * 257.0f / 256, m(1, 4) = 3;
  m(0, 5) = -8 * 259.0f / 256, m(1, 5) = 3;
  mha::detail::round_weights<mha::scaled_int4>(m.view());
  EXPECT_EQ(m(0, 0), 8);
  EXPECT_EQ(m(1, 0), -7) << "at most 7 steps to the other side";
  EXPECT_EQ(m(2, 0), -7);
  EXPECT_EQ(m(3, 0), 8);
  EXPECT_EQ(m(4, 0), 0);
  EXPECT_EQ(m(5, 0), 2);
  EXPECT_EQ(m(6, 0), -2);
  EXPECT_EQ(m(7, 0), 6);
  EXPECT_EQ(m(31, 0), -6);
  EXPECT_EQ(m(8, 0), 0);
  EXPECT_EQ(m(9, 0), 0);
  EXPECT_EQ(m(0, 1), 7) << "the first of the farthest is the negative one";
  EXPECT_EQ(m(30, 1), -8);
  EXPECT_EQ(m(31, 1), 7);
  EXPECT_EQ(m(0, 2), -24);
  EXPECT_EQ(m(1, 2), 6);
  EXPECT_EQ(m(2, 2), 6);
  EXPECT_EQ(m(3, 2), 12);
  EXPECT_EQ(m(4, 2), 18);
  EXPECT_EQ(m(5, 2), -6);
  EXPECT_EQ(m(6, 2), 21);
  EXPECT_EQ(m(7, 2), 21);
  EXPECT_EQ(m(30, 3), 3);
  EXPECT_EQ(m(31, 3), 8);
  EXPECT_EQ(m(32, 3), 1000);
  EXPECT_EQ(m(0, 4), -8);
  EXPECT_EQ(m(1, 4), 3);
  EXPECT_EQ(m(0, 5), -8 * (1 + 1.0f / 64));
  EXPECT_EQ(m(1, 5), 3 * (1 + 1.0f / 64));
}

// The farthest number is 8 steps exactly.
TEST(RoundWeights, ToFourBitsTwiceIsOnce) {
  support::Random random("twice in 4 bits");
  Tensor<float, 2> once(257, 40);
  for (float& w : once) w = static_cast<float>(random.normal() * std::exp2(random.uniform(-20, 20)));
  mha::detail::round_weights<mha::scaled_int4>(once.view());
  Tensor<float, 2> twice = once;
  mha::detail::round_weights<mha::scaled_int4>(twice.view());
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_EQ(twice.data()[i], once.data()[i]) << i;
}

/// Rows of float whose last input is infinite, by an odd number of inputs: there is no number behind it.
TEST(QuantizedNumbers, OfAnOddNumberOfInputsMeetNoInfinityTwice) {
  for (const Index depth : {1, 3, 31, 33, 255, 257})
    for (const Index rows : {1, 4, 9, 50}) {
      Tensor<float, 2> weight(depth, 50), x(rows, depth);
      for (float& w : weight) w = 0.5f;
      for (float& v : x) v = 1;
      for (Index i = 0; i < rows; ++i) x(i, depth - 1) = inf;
      support::at_every_isa([&] {
        mha::Linear<float> linear({.inputs = depth, .outputs = 50, .bias = false});
        linear.quantize<mha::scaled_int4>({.weight = weight});
        for (const float y : linear(x)) ASSERT_EQ(y, inf) << depth << " inputs, " << rows << " rows";
      });
    }
}

TEST(RequireUnpacked, SaysWhatToPassInstead) {
  EXPECT_NO_THROW(mha::detail::require_unpacked(true, "quantize", "layer", 5));
  EXPECT_EQ(support::message_of([] { mha::detail::require_unpacked(false, "quantize", "layer", 5); }),
            "quantize: of the layer's 5 parameters only the packed ones are left: pass the weights "
            "themselves, quantize(weights)");
}

/// Gradients through frozen weights in Q, of W, as through the rounded numbers borrowed in T.
template <class Q, class B, class T, class W, class F> void expect_gradients(support::Random& random) {
  constexpr bool gated = mha::detail::is_gated<F>;
  const Index rows = 1 + random.below(40), in = 200 + random.below(200), out = 1 + random.below(200);
  const mha::LinearConfig config{.inputs = in, .outputs = out, .bias = random.chance(0.7)};
  mha::Linear<T, B, F> linear(config), same(config);
  auto weights = std::make_unique<Weights<W>>(random, in, out, config.bias, gated);
  const Rounded<Q, T> rounded(*weights);
  linear.template quantize<Q>(weights->borrowed());
  weights.reset();
  rounded.lend(same, gated);
  Tensor<T, 2> x(rows, in), dy(rows, out);
  random.fill(x);
  random.fill(dy);
  auto tape = linear.tape(), same_tape = same.tape();
  EXPECT_EQ(support::differing(linear(x, tape), same(x, same_tape)), 0u);
  Tensor<T, 2> dx(rows, in);
  support::poison_all(dx);
  linear.backward(dy, tape, mha::into(dx));
  const auto expected = same.backward(dy, same_tape);
  EXPECT_EQ(support::differing(dx, expected), 0u) << B::name << ", rows " << rows << ", in " << in << ", out " << out;
  auto gradients = linear.gradients(), same_gradients = same.gradients();
  EXPECT_EQ(support::differing(linear.backward(dy, tape, gradients), expected), 0u);
  static_cast<void>(same.backward(dy, same_tape, same_gradients));
  EXPECT_EQ(support::differing(gradients.flat(), same_gradients.flat()), 0u) << B::name;
  double sum = 0;
  for (const auto g : gradients.flat()) sum += std::abs(static_cast<double>(g));
  EXPECT_GT(sum, 0);
}

TYPED_TEST(QuantizedWeights, PassGradientsOn) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  support::Random random("gradients through integers");
  support::at_every_isa([&] {
    expect_gradients<Q, mha::Cpu, float, W, Identity>(random);
    expect_gradients<Q, mha::Cpu, float, W, mha::Gelu>(random);
    expect_gradients<Q, mha::Cpu, float, W, mha::SwiGlu>(random);
  });
  expect_gradients<Q, mha::Cpu, double, typename TypeParam::InDouble, mha::SwiGlu>(random);
  expect_gradients<Q, mha::Reference, float, W, mha::SwiGlu>(random);
  expect_gradients<Q, mha::EigenCpu, float, W, mha::SwiGlu>(random);
}

TYPED_TEST(QuantizedWeights, OfAFeedForwardPassGradientsOn) {
  using Q = typename TypeParam::Q;
  using W = typename TypeParam::W;
  support::Random random("gradients through a feed-forward of integers");
  const mha::FeedForwardConfig config{.d_model = 70, .d_hidden = 300, .bias = true};
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> narrow(config), same(config);
  auto up = std::make_unique<Weights<W>>(random, 70, 300, true, true),
       down = std::make_unique<Weights<W>>(random, 300, 70, true, false);
  const Rounded<Q, float> rounded_up(*up), rounded_down(*down);
  narrow.template quantize<Q>(mha::BorrowedFeedForward<W>{.up = up->borrowed(), .down = down->borrowed()});
  up.reset(), down.reset();
  rounded_up.lend(same.up(), true);
  rounded_down.lend(same.down(), false);
  for (const Index rows : {1, 50}) {
    Tensor<float, 2> x(rows, 70), dy(rows, 70);
    random.fill(x);
    random.fill(dy);
    auto tape = narrow.tape(), same_tape = same.tape();
    EXPECT_EQ(support::differing(narrow(x, tape, mha::residual(x)), same(x, same_tape, mha::residual(x))), 0u);
    const auto dx = narrow.backward(dy, tape), expected = same.backward(dy, same_tape);
    EXPECT_EQ(support::differing(dx, expected), 0u) << rows;
    auto gradients = narrow.gradients(), same_gradients = same.gradients();
    EXPECT_EQ(support::differing(narrow.backward(dy, tape, gradients), expected), 0u);
    static_cast<void>(same.backward(dy, same_tape, same_gradients));
    EXPECT_EQ(support::differing(gradients.flat(), same_gradients.flat()), 0u);
  }
}

}  // namespace
