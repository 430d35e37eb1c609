// SPDX-License-Identifier: Apache-2.0
// The gradients of a bias and of a score's numbers by the CUDA backend's kernels on the host model: every policy and
// argument of a call, against the reference in double, and their promises on bits.
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "any_policies.hpp"
#include "kernels.hpp"
#include "score_gradient_case.hpp"

namespace {

using mha::Index;
using mha::Reference;
using mha::Tensor;
using support::BackwardCase;
using support::BackwardSizes;
using support::SimulatedCuda;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
constexpr BackwardSizes sizes{2, 66, 70, 2, 1, 8, 12};

/// Every mask as one type, so that the kernels are compiled once for all.
template <class M> auto any(const M& mask) {
  return support::Unprepared<support::AnyMask>::of<SimulatedCuda, float>(mask);
}
const auto causal = any(mha::Causal{}), full = any(mha::Full{});

/// A user's two numbers.
template <class X = float> struct Bent {
  X slope, bend;
  template <class S> auto operator()(S s, Index b, Index h, Index q, Index k) const {
    return mha::tanh(s * bend) * (1 + 0.25f * static_cast<float>(h) + 0.125f * static_cast<float>(b)) -
           slope * (0.03125f * static_cast<float>(mha::abs(q - k)));
  }
};
const Bent<> bent{0.5f, 0.75f};

/// The largest error by norm, in units of the bound.
template <class T, class Found, class Expected>
double error_of(const BackwardCase<T>& c, const Found& found, const Expected& expected) {
  return support::relative_error(found, expected, support::gradient_scale(c)) / support::gradient_bound<T>;
}
/// The gradients of a bias that repeats each of these sets of axes, and of two numbers.
template <class T, class... Extra>
void expect_right(const std::string& name, const BackwardSizes& n, const std::vector<int>& repeats,
                  const Extra&... extra) {
  const BackwardCase<T> c("simulated scores " + name, n);
  for (const int axes : repeats) {
    const auto bias = support::repeated_bias<T>(name, n, axes);
    const auto expected = support::score_gradients<Reference, double>(c.template as<double>(), bias, bent, extra...);
    const auto found = support::score_gradients<SimulatedCuda, mha::Accumulator<T>>(c, bias, bent, extra...);
    EXPECT_LE(error_of(c, found.bias, expected.bias), 1) << name << ", axes " << axes;
    EXPECT_LE(error_of(c, found.numbers, expected.numbers), 1) << name;
  }
}
template <class T, class... Extra>
void expect_numbers(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  const BackwardCase<T> c("simulated numbers " + name, n);
  const auto expected = support::score_gradient<Reference>(c.template as<double>(), extra...);
  const auto found = support::score_gradient<SimulatedCuda>(c, extra...);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_LE(error_of(c, found, expected), 1) << name;
}

struct Sieve {
  bool operator()(Index, Index h, Index q, Index k) const { return (q + 2 * k + h) % 3 != 0; }
};
/// Eleven numbers, which two launches sum.
template <class X = float> struct Eleven {
  X value[11];
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    const Index distance = mha::abs(q - k);
    return mha::tanh(s / 3.f) * value[distance < 10 ? distance : 10];
  }
};
Eleven<> eleven() {
  Eleven<> score{};
  for (int i = 0; i < 11; ++i) score.value[i] = 2 - 0.1f * static_cast<float>(i);
  return score;
}
/// A number beside a derivative by the logit that the score knows itself. Of a quarter of the logit, as its cube alone
/// would reach hundreds, and the sum's rounding with it.
template <class X = float> struct Cubic {
  X weight;
  template <class S> auto operator()(S s, Index, Index, Index, Index) const {
    const S quarter = s * 0.25f;
    return s + weight * (quarter * quarter * quarter);
  }
  template <class S> S derivative(S s, S, Index, Index, Index, Index) const {
    return 1 + 0.046875f * static_cast<S>(weight) * s * s;
  }
};
mha::RelativeBias table(int buckets, int heads, int reach, bool both) {
  std::vector<float> x(static_cast<std::size_t>(buckets * heads));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.125f * static_cast<float>(i % 7);
  return mha::RelativeBias(x, {buckets, reach, both});
}

template <class T> class SimulatedScores : public testing::Test {};
using Scalars = testing::Types<float, double, mha::bfloat16>;  // half's text is bfloat16's
TYPED_TEST_SUITE(SimulatedScores, Scalars);

TYPED_TEST(SimulatedScores, BiasOfEveryShape) {
  std::vector<int> some{0, 1, 4, 13, 15};
  if (std::is_same_v<TypeParam, float>)
    for (const int axes : {2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14}) some.push_back(axes);
  expect_right<TypeParam>("shapes", {2, 66, 70, 2, 1, 4, 4}, some, causal);
}

TEST(SimulatedScores, BiasInTheCallsOwnScalar) {
  using T = mha::bfloat16;
  const BackwardCase<T> c("simulated narrow bias", sizes);
  for (const int axes : {0, 1, 6}) {
    const auto bias = support::repeated_bias<T>("narrow", sizes, axes);
    const auto wide = support::score_gradients<SimulatedCuda, mha::Accumulator<T>>(c, bias, bent, causal).bias;
    const auto own = support::score_gradients<SimulatedCuda, T>(c, bias, bent, causal).bias;
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(own.data()[i] == static_cast<T>(wide.data()[i])) << i;
  }
}

/// No order of blocks, no number of multiprocessors and no second run changes a bit.
TYPED_TEST(SimulatedScores, OrderOfBlocksAndDevicesChangeNoBits) {
  using T = TypeParam;
  using support::gpu::Order;
  const BackwardCase<T> c("simulated scores order", sizes);
  for (const int axes : {1, 4, 15}) {
    const auto bias = support::repeated_bias<T>("order", sizes, axes);
    const auto all = [&] {
      return support::score_gradients<SimulatedCuda, mha::Accumulator<T>>(c, bias, bent, causal);
    };
    const auto first = all();
    for (const Order order : {Order{Order::backward}, Order{Order::shuffled, 5}}) {
      SimulatedCuda::state.order = order;
      SimulatedCuda::state.device.multiprocessors = 7;
      const auto again = all();
      EXPECT_EQ(support::differing(again.bias, first.bias), 0u) << axes;
      EXPECT_EQ(again.numbers, first.numbers);
    }
    SimulatedCuda::state = {};
  }
}

TEST(SimulatedScores, EveryPolicyOfACall) {
  const std::vector<Index> lengths{30, 70};
  const std::vector<int> repeats{0, 13};
  expect_right<float>("window", sizes, repeats, any(mha::SlidingWindow{.left = 9, .right = 4}));
  expect_right<float>("padding", sizes, repeats, any(mha::Padding{lengths} && mha::Causal{}));
  expect_right<float>("sieve", sizes, repeats, any(Sieve{}));
  const std::vector<float> none(2, -inf);
  const auto check = [&](const char* name, const std::vector<float>& sinks, float p, Index origin, double scale) {
    expect_right<float>(name, sizes, repeats, mha::Sink(sinks), mha::Dropout{p}, mha::DropoutSeed{7},
                        mha::Origin{origin}, mha::Scale{scale}, causal);
  };
  check("sink", {0.5f, -2.f}, 0, 4, 0.375);
  check("dropout", none, 0.3f, 4, 0.375);
  check("origin and scale", none, 0, 3, -0.3);
  expect_right<mha::bfloat16>("dropout", sizes, {1}, mha::Dropout{0.3f}, mha::DropoutSeed{7}, causal);
  expect_right<float>("cap behind", sizes, repeats, mha::SoftCap{2.f}, full);
  expect_right<float>("one head of keys", {1, 33, 65, 3, 1, 40, 72}, repeats, causal);
  expect_right<float>("wide heads", {1, 20, 70, 1, 1, 130, 70}, {0}, causal);
  expect_right<mha::bfloat16>("wide heads", {1, 20, 70, 1, 1, 264, 136}, {0}, causal);
}

TEST(SimulatedScores, RaggedSequences) {
  const std::vector<Index> q_offsets{0, 20, 20, 53, 122}, k_offsets{0, 8, 30, 110, 140};
  const BackwardSizes n{1, 122, 140, 2, 1, 16, 24}, longest{4, 69, 80, 2, 1, 16, 24};
  const mha::Ragged ragged{q_offsets, k_offsets};
  const BackwardCase<float> c("simulated scores ragged", n);
  for (const int axes : {0, 1, 4, 15}) {
    const auto bias = support::repeated_bias<float>("ragged", longest, axes);
    const auto expected = support::score_gradients<Reference, double>(c.as<double>(), bias, bent, ragged, causal);
    const auto found = support::score_gradients<SimulatedCuda, float>(c, bias, bent, ragged, causal);
    EXPECT_LE(error_of(c, found.bias, expected.bias), 1) << axes;
    EXPECT_LE(error_of(c, found.numbers, expected.numbers), 1) << axes;
  }
  expect_numbers<float>("ragged table", n, table(8, 2, 20, true), ragged, full);
}

TEST(SimulatedScores, NumbersOfEveryScore) {
  expect_numbers<float>("slopes", sizes, mha::AlibiSlopes({0.25f, 0.5f}), causal);
  expect_numbers<float>("short table", sizes, table(8, 2, 16, true), full);
  expect_numbers<float>("long table", sizes, table(8, 2, 300, false), full);
  expect_numbers<double>("short table", sizes, table(8, 2, 16, true), full);
  expect_numbers<float>("eleven numbers", sizes, eleven(), full);
  expect_numbers<float>("own derivative", sizes, Cubic<>{2.f}, full);
  const BackwardSizes many{1, 64 * 17 + 5, 40, 1, 1, 4, 4};  // more tiles of queries than parts
  expect_numbers<float>("many", many, eleven(), full);
  expect_numbers<float>("many", many, table(8, 1, 20, true), full);
}

TEST(SimulatedScores, ChainsOfThem) {
  const BackwardCase<float> c("simulated chain", sizes);
  const auto bias = support::repeated_bias<float>("chain", sizes, 1);
  const mha::Chain score{mha::Chain{table(4, 2, 3, true), mha::AlibiSlopes({0.25f, 0.5f})},
                         mha::Chain{mha::Chain{eleven(), mha::SoftCap{3.f}}, table(8, 2, 40, false)}};
  const auto found = support::score_gradients<SimulatedCuda, float>(c, bias, score, mha::Alibi{}, causal);
  const auto expected = support::score_gradients<Reference, double>(c.as<double>(), bias, score, mha::Alibi{}, causal);
  ASSERT_EQ(found.numbers.size(), 8u + 2 + 11 + 1 + 16);
  EXPECT_LE(error_of(c, found.numbers, expected.numbers), 1);
  EXPECT_LE(error_of(c, found.bias, expected.bias), 1);
}

TEST(SimulatedScores, WithTheLogSumExpsGradient) {
  const BackwardCase<float> c("simulated scores log-sum-exp", sizes);
  Tensor<float, 3> d_lse(2, 2, 66);
  support::Random("simulated scores d_lse").fill(d_lse);
  Tensor<double, 3> exact(2, 2, 66);
  for (std::size_t i = 0; i < d_lse.size(); ++i) exact.data()[i] = static_cast<double>(d_lse.data()[i]);
  const auto of = [&]<class B>(const B&, const auto& x, const auto& lse) {
    mha::AttentionTape<std::remove_cvref_t<decltype(x.q.data()[0])>, B> tape;
    const auto out = mha::attention<B>(x.q, x.k, x.v, bent, mha::record(tape));
    return support::numbers_of(
        mha::attention_backward(x.d_out, x.q, x.k, x.v, out, tape, bent, mha::LogSumExpGradient(lse)).score);
  };
  EXPECT_LE(error_of(c, of(SimulatedCuda{}, c, d_lse), of(Reference{}, c.as<double>(), exact)), 1);
}

TEST(SimulatedScores, OddShapes) {
  for (const auto& [queries, keys] : std::vector<std::pair<int, int>>{{1, 1}, {1, 65}, {65, 1}, {64, 64}, {129, 3}}) {
    const BackwardSizes n{1, queries, keys, 2, 2, 5, 3};
    expect_right<float>("odd", n, {0, 4, 8, 12}, causal);
    expect_right<double>("odd", n, {4}, causal);
  }
  expect_right<float>("many", {1, 64 * 17 + 5, 40, 1, 1, 4, 4}, {4, 12}, any(mha::CausalTopLeft{}));
}

TEST(SimulatedScores, WritesTheElementsOfTheTableAlone) {
  const BackwardCase<float> c("simulated bias strides", sizes);
  const auto bias = support::repeated_bias<float>("strides", sizes, 1);
  const auto expected = support::score_gradients<SimulatedCuda, float>(c, bias, bent, causal).bias;
  std::vector<float> memory(2 * 2 * 66 * 70, nan);  // (Lk, Lq, Hq), every second element, backwards
  const mha::TensorView<float, 3> backwards{memory.data() + memory.size() - 1, {2, 66, 70}, {-2, -4, -2 * 2 * 66}};
  mha::AttentionTape<float, SimulatedCuda> tape;
  const mha::AdditiveBias added(bias);
  const auto out = mha::attention<SimulatedCuda>(c.q, c.k, c.v, added, bent, causal, mha::record(tape));
  mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, added, bent, causal,
                               mha::BiasGradient(backwards));
  for (Index h = 0; h < 2; ++h)
    for (Index q = 0; q < 66; ++q)
      for (Index k = 0; k < 70; ++k) ASSERT_EQ(backwards(h, q, k), expected(0, h, q, k));
  for (std::size_t i = 0; i < memory.size(); i += 2) ASSERT_TRUE(std::isnan(memory[i])) << "between the elements";
}

TEST(SimulatedScores, AddsToWhatTheTableHolds) {
  const BackwardCase<float> c("simulated bias added", sizes);
  const BackwardCase<mha::bfloat16> narrow("simulated bias added", sizes);
  for (const int axes : {0, 7}) {
    const auto bias = support::repeated_bias<float>("added", sizes, axes);
    EXPECT_TRUE((support::adds_bias_gradient<SimulatedCuda, float>(c, bias, bent, causal))) << axes;
    const auto narrow_bias = support::repeated_bias<mha::bfloat16>("added", sizes, axes);
    EXPECT_TRUE((support::adds_bias_gradient<SimulatedCuda, mha::bfloat16>(narrow, narrow_bias, bent, causal))) << axes;
  }
}

TEST(SimulatedScores, HiddenPairsAndEmptyRowsAddExactlyNothing) {
  BackwardCase<float> c("simulated hidden", sizes);
  const std::vector<Index> lengths{70, 31};
  const mha::Origin origin{-2};  // the first two queries see nothing
  const auto gradients = [&](int axes) {
    auto bias = support::repeated_bias<float>("hidden", sizes, axes);
    bias(0, 0, 3, 1) = -inf;
    return support::score_gradients<SimulatedCuda, float>(
        c, bias, mha::Chain{table(8, 2, 40, false), mha::AlibiSlopes({0.25f, 0.5f})},
        any(mha::Padding{lengths} && mha::Causal{}), origin);
  };
  std::vector<support::ScoreGradients<float>> clean;
  for (const int axes : {0, 1, 3}) clean.push_back(gradients(axes));
  for (Index k = 31; k < 70; ++k) c.k(1, k, 0, 3) = c.v(1, k, 0, 4) = nan;
  for (Index d = 0; d < 8; ++d) c.d_out(0, 0, 1, d) = c.q(0, 1, 1, d) = nan;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto g = gradients(std::vector<int>{0, 1, 3}[i]);
    EXPECT_EQ(g.numbers, clean[i].numbers);
    EXPECT_EQ(support::differing(g.bias, clean[i].bias), 0u);
    for (Index k = 0; k < 70; ++k) EXPECT_EQ(support::bits(g.bias(0, 0, 1, k)), 0u) << "a row that sees nothing";
    EXPECT_EQ(support::bits(g.bias(0, 0, 3, 60)), 0u);
    EXPECT_EQ(support::bits(g.bias(0, 0, 3, 1)), 0u) << "hidden by the bias";
  }
}

TEST(SimulatedScores, ANanThatIsSeenStays) {
  const BackwardSizes n{1, 20, 30, 1, 1, 8, 8};
  BackwardCase<float> c("simulated scores NaN", n);
  c.d_out(0, 7, 0, 3) = nan;
  const auto bias = support::repeated_bias<float>("NaN", n, 0);
  const auto g = support::score_gradients<SimulatedCuda, float>(c, bias, bent, any(mha::CausalTopLeft{}));
  for (Index k = 0; k < 30; ++k) {
    EXPECT_EQ(std::isnan(g.bias(0, 0, 7, k)), k <= 7);
    EXPECT_FALSE(std::isnan(g.bias(0, 0, 8, k)));
  }
  EXPECT_TRUE(std::isnan(g.numbers[0]) && std::isnan(g.numbers[1]));
}

TEST(SimulatedScores, NoPairsGiveZeros) {
  for (const BackwardSizes n : {BackwardSizes{0, 70, 90, 4, 2, 8, 8}, BackwardSizes{2, 0, 90, 4, 2, 8, 8}}) {
    const BackwardCase<float> c("simulated none", n);
    const auto g = support::score_gradients<SimulatedCuda, float>(c, Tensor<float, 4>(1, 4, 1, 90), bent, causal);
    for (const float x : g.bias) EXPECT_EQ(x, 0);
    for (const double x : g.numbers) EXPECT_EQ(x, 0);
  }
}

TEST(SimulatedScores, ChangeNoOtherGradient) {
  const BackwardCase<float> c("simulated others", sizes);
  const auto bias = support::repeated_bias<float>("others", sizes, 0);
  const mha::AdditiveBias added(bias);
  mha::AttentionTape<float, SimulatedCuda> tape;
  const auto out = mha::attention<SimulatedCuda>(c.q, c.k, c.v, added, causal, mha::record(tape));
  const auto alone = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, added, causal);
  Tensor<float, 4> to(2, 2, 66, 70);
  const auto beside = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, added, causal, mha::BiasGradient(to));
  EXPECT_EQ(support::differing(beside.query, alone.query), 0u);
  EXPECT_EQ(support::differing(beside.key, alone.key), 0u);
  EXPECT_EQ(support::differing(beside.value, alone.value), 0u);
}

}  // namespace
