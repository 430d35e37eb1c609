// SPDX-License-Identifier: Apache-2.0
// The gradients of the numbers of a score that accumulates, by the CUDA backend's kernels on the host model: every
// policy and argument of a call, against the reference in double, and their promises on bits.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
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
using support::BackwardCase;
using support::BackwardSizes;
using support::SimulatedCuda;
using support::gpu::Order;
using Model = support::gpu::BackwardModel<>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr BackwardSizes sizes{2, 66, 70, 2, 1, 8, 12};

/// Every mask as one type, so that the kernels are compiled once for all.
template <class M> auto any(const M& mask) {
  return support::Unprepared<support::AnyMask>::of<SimulatedCuda, float>(mask);
}
const auto causal = any(mha::Causal{}), full = any(mha::Full{});

/// A pair adds to a number of its own place and to the last one. Nine are copied for a head, forty are not.
template <std::size_t Count> struct Places {
  float of[Count];
  std::span<float> numbers() { return of; }
  std::span<const float> numbers() const { return of; }
  static std::size_t place(Index b, Index h, Index q, Index k) {
    return static_cast<std::size_t>(5 * b + 3 * h + mha::abs(q - 2 * k)) % (Count - 1);
  }
  static float by_key(Index k) { return 0.125f * static_cast<float>(k % 3); }
  template <class S> S operator()(S s, Index b, Index h, Index q, Index k) const {
    return s * 0.5f + mha::tanh(s) * of[place(b, h, q, k)] + by_key(k) * of[Count - 1];
  }
  template <class G, class S> void accumulate(G gradient, S dt, S s, Index b, Index h, Index q, Index k) const {
    gradient[place(b, h, q, k)] += dt * mha::tanh(s);
    gradient[Count - 1] += dt * static_cast<S>(by_key(k));
  }
};
template <std::size_t Count> Places<Count> places() {
  Places<Count> score{};
  for (std::size_t i = 0; i < Count; ++i) score.of[i] = 0.5f - 0.25f * static_cast<float>(i % 5);
  return score;
}
static_assert(!mha::detail::HoldsTable<Places<9>> && mha::detail::HoldsTable<Places<40>>);

/// Eleven numbers by dual numbers, which two launches sum.
template <class X = float> struct Eleven {
  X value[11];
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    const Index distance = mha::abs(q - k);
    return mha::tanh(s / 3.f) * value[distance < 10 ? distance : 10];
  }
};
mha::RelativeBias table() { return mha::RelativeBias(std::vector<float>(8, 0.25f), {4, 3, true}); }

/// The largest error by norm, in units of the bound.
template <class T, class Found, class Expected>
double error_of(const BackwardCase<T>& c, const Found& found, const Expected& expected) {
  return support::relative_error(found, expected, support::gradient_scale(c)) / support::gradient_bound<T>;
}
template <class T, class... Extra>
void expect_numbers(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  const BackwardCase<T> c("accumulated " + name, n);
  const auto expected = support::score_gradient<Reference>(c.template as<double>(), extra...);
  const auto found = support::score_gradient<Model>(c, extra...);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_LE(error_of(c, found, expected), 1) << name;
}

template <class T> class AccumulatedScores : public testing::Test {};
using Scalars = testing::Types<float, double, mha::bfloat16>;  // half's text is bfloat16's
TYPED_TEST_SUITE(AccumulatedScores, Scalars);

TYPED_TEST(AccumulatedScores, HaveTheGradientsOfTheReference) {
  expect_numbers<TypeParam>("places", sizes, places<9>(), causal);
  const BackwardSizes many{1, 64 * 17 + 5, 40, 1, 1, 4, 4};  // more tiles of queries than parts
  expect_numbers<TypeParam>("many tiles", many, places<9>(), full);
}

/// However many threads of a block add and blocks share a head, as their sums may take memory. No order of blocks, no
/// number of multiprocessors and no second run changes a bit.
TEST(AccumulatedScores, HaveAsManyOwnersAsFit) {
  const BackwardSizes n{2, 150, 70, 2, 1, 8, 12};
  const BackwardCase<float> c("accumulated owners", n);
  const auto expected = support::score_gradient<Reference>(c.as<double>(), places<9>(), causal);
  const std::int64_t one = 2 * 2 * 9 * 8;  // bytes of a sum for each number and head
  for (const std::int64_t bytes : {std::int64_t{1} << 28, 64 * one, 32 * one, 7 * one, one, one - 1}) {
    Model::limits.own_bytes = bytes;
    const auto found = support::score_gradient<Model>(c, places<9>(), causal);
    EXPECT_LE(error_of(c, found, expected), 1) << bytes;
    Model::state.order = Order{Order::shuffled, 5};
    Model::state.device.multiprocessors = 7;
    EXPECT_EQ(support::score_gradient<Model>(c, places<9>(), causal), found) << bytes;
    Model::state = {};
  }
  Model::limits = {};
}

TEST(AccumulatedScores, WithEveryPolicyOfACall) {
  const std::vector<Index> lengths{30, 70};
  expect_numbers<float>("window", sizes, places<9>(), any(mha::SlidingWindow{.left = 9, .right = 4}));
  expect_numbers<float>("padding", sizes, places<9>(), any(mha::Padding{lengths} && mha::Causal{}));
  const std::vector<float> none(2, -std::numeric_limits<float>::infinity());
  const auto check = [](const char* name, const std::vector<float>& sinks, float p, Index origin, double scale) {
    expect_numbers<float>(name, sizes, places<9>(), mha::Sink(sinks), mha::Dropout{p}, mha::DropoutSeed{7},
                          mha::Origin{origin}, mha::Scale{scale}, causal);
  };
  check("sink", {0.5f, -2.f}, 0, 4, 0.375);
  check("dropout", none, 0.3f, 4, 0.375);
  check("origin and scale", none, 0, 3, -0.3);
  expect_numbers<float>("wide heads", {1, 20, 70, 1, 1, 130, 70}, places<9>(), causal);
  expect_numbers<float>("read in place", sizes, places<40>(), causal);
  const std::vector<Index> q_offsets{0, 20, 20, 53, 122}, k_offsets{0, 8, 30, 110, 140};
  expect_numbers<float>("ragged", {1, 122, 140, 2, 1, 16, 24}, places<9>(), mha::Ragged{q_offsets, k_offsets}, causal);
}

TEST(AccumulatedScores, OfOddShapes) {
  for (const auto& [queries, keys] : std::vector<std::pair<int, int>>{{1, 1}, {1, 65}, {65, 1}, {64, 64}, {129, 3}})
    expect_numbers<float>("odd", {1, queries, keys, 2, 2, 5, 3}, places<9>(), causal);
}

/// Those that accumulate stand between others, and each is asked what it was given; one part of a head's numbers, and
/// several.
TEST(AccumulatedScores, InChains) {
  Eleven<> eleven{};
  for (int i = 0; i < 11; ++i) eleven.value[i] = 2 - 0.1f * static_cast<float>(i);
  const mha::Chain score{mha::Chain{places<9>(), table()},
                         mha::Chain{mha::Chain{eleven, mha::SoftCap{3.f}}, places<40>()}};
  for (const BackwardSizes n : {sizes, BackwardSizes{2, 20, 33, 2, 1, 8, 8}}) {
    const BackwardCase<float> c("accumulated chain", n);
    const auto bias = support::repeated_bias<float>("accumulated chain", n, 1);
    const auto found = support::score_gradients<Model, float>(c, bias, score, mha::Alibi{}, causal);
    const auto expected =
        support::score_gradients<Reference, double>(c.as<double>(), bias, score, mha::Alibi{}, causal);
    ASSERT_EQ(found.numbers.size(), 9u + 8 + 11 + 1 + 40);
    EXPECT_LE(error_of(c, found.numbers, expected.numbers), 1);
    EXPECT_LE(error_of(c, found.bias, expected.bias), 1);
  }
}

/// What is hidden adds nothing, whatever stands there; a NaN that is seen stays.
TEST(AccumulatedScores, HaveNothingOfHiddenPairs) {
  BackwardCase<float> c("accumulated hidden", sizes);
  const std::vector<Index> lengths{70, 31};
  const auto gradient = [&] {  // the first two queries see nothing
    return support::score_gradient<Model>(c, places<9>(), any(mha::Padding{lengths} && mha::Causal{}), mha::Origin{-2});
  };
  const auto clean = gradient();
  for (Index k = 31; k < 70; ++k) c.k(1, k, 0, 3) = c.v(1, k, 0, 4) = nan;
  for (Index d = 0; d < 8; ++d) c.d_out(0, 0, 1, d) = c.q(0, 1, 1, d) = nan;
  EXPECT_EQ(gradient(), clean);
  c.d_out(0, 9, 0, 3) = nan;
  EXPECT_TRUE(std::isnan(gradient().back()));
}

TEST(AccumulatedScores, AreZeroWithoutPairs) {
  for (const BackwardSizes n : {BackwardSizes{0, 70, 90, 4, 2, 8, 8}, BackwardSizes{2, 0, 90, 4, 2, 8, 8}})
    for (const double x : support::score_gradient<Model>(BackwardCase<float>("none", n), places<9>(), causal))
      EXPECT_EQ(x, 0);
}

/// A call that computes them has the bits of one that does not.
TEST(AccumulatedScores, ChangeNoOtherGradient) {
  const BackwardCase<float> c("accumulated others", sizes);
  mha::AttentionTape<float, Model> tape;
  const auto out = mha::attention<Model>(c.q, c.k, c.v, places<9>(), causal, mha::record(tape));
  const auto beside = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, places<9>(), causal);
  mha::Tensor<float, 4> dq(2, 66, 2, 8), dk(2, 70, 1, 8), dv(2, 70, 1, 12);
  mha::attention_backward_into({dq, dk, dv}, c.d_out, c.q, c.k, c.v, out, tape, places<9>(), causal);
  EXPECT_EQ(support::differing(beside.query, dq), 0u);
  EXPECT_EQ(support::differing(beside.key, dk), 0u);
  EXPECT_EQ(support::differing(beside.value, dv), 0u);
}

}  // namespace
