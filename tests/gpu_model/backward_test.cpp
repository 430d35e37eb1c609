// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CUDA backend's kernels on the host model: every policy and argument of a call, against the
// reference in double, and its promises on bits.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "any_policies.hpp"
#include "kernels.hpp"

namespace {

using mha::bfloat16;
using mha::Index;
using mha::Reference;
using mha::Tensor;
using support::BackwardCase;
using support::BackwardSizes;
using support::SimulatedCuda;
using support::gpu::BackwardModel;
using support::gpu::gradient_error;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
constexpr BackwardSizes sizes{2, 70, 90, 4, 2, 16, 24};

template <class T> class SimulatedBackward : public testing::Test {};
using Scalars = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(SimulatedBackward, Scalars);

/// Every mask as one type, so that calls are compiled once for all.
template <class M> auto any(const M& mask) {
  return support::Unprepared<support::AnyMask>::of<SimulatedCuda, float>(mask);
}
const auto causal = any(mha::Causal{});

template <class T, class... Extra>
void expect_right(const std::string& name, const BackwardSizes& of, const Extra&... extra) {
  EXPECT_LE(gradient_error(BackwardCase<T>("simulated backward " + name, of), extra...), 1) << name;
}

/// A user's policies: no tile(), a head of its own, pairs hidden by the score.
struct Sieve {
  bool operator()(Index, Index h, Index q, Index k) const { return (q + 2 * k + h) % 3 != 0; }
};
struct Slopes {
  template <class X> X operator()(X s, Index, Index h, Index q, Index k) const {
    if ((q + k) % 7 == 3) return X(-inf);
    return s * s / 8 - X(0.0625f * static_cast<float>((h + 1) * ((q - k) % 8)));
  }
};

TYPED_TEST(SimulatedBackward, TakesEveryMask) {
  const std::vector<Index> lengths{30, 90};
  expect_right<TypeParam>("top left", sizes, any(mha::CausalTopLeft{}));
  expect_right<TypeParam>("window", sizes, any(mha::SlidingWindow{.left = 9, .right = 4}));
  expect_right<TypeParam>("padding", sizes, any(mha::Padding{lengths} && mha::Causal{}));
  expect_right<TypeParam>("sieve", sizes, any(Sieve{}));
}

TYPED_TEST(SimulatedBackward, TakesEveryScore) {
  expect_right<TypeParam>("cap and slopes", sizes, mha::SoftCap{2.f}, mha::Alibi{}, causal);
  expect_right<TypeParam>("functor", sizes, Slopes{});
  support::Random random("simulated backward bias");
  Tensor<float, 3> bias(4, 70, 90);
  for (auto& x : bias) x = random.chance(0.1) ? -inf : random.chance(0.1) ? -1e9f : static_cast<float>(random.normal());
  BackwardCase<TypeParam> c("simulated backward bias", sizes);
  for (Index k = 0; k < 90; ++k) bias(1, 3, k) = -1e9f;  // all of a row: weights of 1/90 behind a level of -1e9
  for (Index d = 0; d < 16; ++d) c.q(0, 3, 1, d) = c.q(1, 3, 1, d) = TypeParam(0.f);
  EXPECT_LE(gradient_error(c, mha::AdditiveBias(bias)), 1);
}

TYPED_TEST(SimulatedBackward, TakesWhatACallMayHave) {
  const std::vector<float> none(4, -inf);
  const auto check = [](const char* name, const std::vector<float>& sinks, float p, Index origin, double scale) {
    expect_right<TypeParam>(name, sizes, mha::Sink(sinks), mha::Dropout{p}, mha::DropoutSeed{7}, mha::Origin{origin},
                            mha::Scale{scale}, causal);
  };
  check("sink", {0.5f, -2.f, 3.f, -inf}, 0, 20, 0.25);
  check("dropout", none, 0.3f, 20, 0.25);
  check("origin and scale", none, 0, 3, -0.3);
  const std::vector<Index> q_offsets{0, 20, 20, 53, 70}, k_offsets{0, 8, 30, 80, 90};
  expect_right<TypeParam>("ragged", {1, 70, 90, 4, 2, 16, 24}, mha::Ragged{q_offsets, k_offsets}, causal);
}

/// Gradients into memory of a caller's: what is poisoned is overwritten, what is added to is kept.
TYPED_TEST(SimulatedBackward, WritesWhereItIsTold) {
  using T = TypeParam;
  const BackwardCase<T> c("simulated backward destinations", sizes);
  mha::AttentionTape<T, SimulatedCuda> tape;
  const auto out = mha::attention<SimulatedCuda>(c.q, c.k, c.v, causal, mha::record(tape));
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, causal);
  Tensor<float, 4> d_query(2, 70, 4, 16), d_key(2, 90, 2, 16);
  for (auto& x : d_query) x = nan;
  for (auto& x : d_key) x = 3;
  mha::attention_backward_into({d_query, mha::add_to(d_key), {}}, c.d_out, c.q, c.k, c.v, out, tape, causal);
  for (std::size_t i = 0; i < d_query.size(); ++i)
    EXPECT_EQ(static_cast<float>(T(d_query.data()[i])), static_cast<float>(g.query.data()[i]));
  const double most = 2 * support::unit_roundoff<T>();
  for (std::size_t i = 0; i < d_key.size(); ++i) {
    const float x = static_cast<float>(g.key.data()[i]);
    EXPECT_NEAR(d_key.data()[i], 3 + x, most * std::abs(x) + 1e-6);
  }

  Tensor<T, 4> by_heads(2, 2, 90, 24), alone(2, 2, 90, 24);  // (B, H, L, D)
  const mha::TensorView<T, 4> value{by_heads.data(), {2, 90, 2, 24}, {2 * 90 * 24, 24, 90 * 24, 1}};
  mha::attention_backward_into({{}, {}, value}, c.d_out, c.q, c.k, c.v, out, tape, causal);
  for (Index b = 0; b < 2; ++b)
    for (Index k = 0; k < 90; ++k)
      for (Index h = 0; h < 2; ++h)
        for (Index d = 0; d < 24; ++d)
          EXPECT_EQ(static_cast<float>(value(b, k, h, d)), static_cast<float>(g.value(b, k, h, d)));
}

TYPED_TEST(SimulatedBackward, TakesAnyStridesAndTheLogSumExpsGradient) {
  using T = TypeParam;
  const BackwardCase<T> c("simulated backward strides", sizes);
  using A = mha::Accumulator<T>;
  support::Random random("simulated backward log-sum-exp");
  Tensor<A, 3> d_lse(2, 4, 70);
  random.fill(d_lse);
  Tensor<double, 3> exact(2, 4, 70);
  for (std::size_t i = 0; i < d_lse.size(); ++i) exact.data()[i] = d_lse.data()[i];
  Tensor<T, 4> columns(2, 16, 4, 70), outs(2, 24, 4, 70);  // (B, D, H, L)
  const mha::TensorView<T, 4> q{columns.data(), {2, 70, 4, 16}, {16 * 4 * 70, 1, 70, 4 * 70}};
  const mha::TensorView<T, 4> d_out{outs.data(), {2, 70, 4, 24}, {24 * 4 * 70, 1, 70, 4 * 70}};
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 70; ++i)
      for (Index h = 0; h < 4; ++h) {
        for (Index d = 0; d < 16; ++d) q(b, i, h, d) = c.q(b, i, h, d);
        for (Index d = 0; d < 24; ++d) d_out(b, i, h, d) = c.d_out(b, i, h, d);
      }
  mha::AttentionTape<T, SimulatedCuda> tape;
  const auto out = mha::attention<SimulatedCuda>(q, c.k, c.v, mha::record(tape));
  const auto found = mha::attention_backward(d_out, q, c.k, c.v, out, tape, mha::LogSumExpGradient(d_lse));
  const auto e = c.template as<double>();
  mha::AttentionTape<double, Reference> exact_tape;
  const auto exact_out = mha::attention<Reference>(e.q, e.k, e.v, mha::record(exact_tape));
  const auto expected =
      mha::attention_backward(e.d_out, e.q, e.k, e.v, exact_out, exact_tape, mha::LogSumExpGradient(exact));
  EXPECT_LE(support::relative_error(found.query, expected.query) / support::gradient_bound<T>, 1);
  EXPECT_LE(support::relative_error(found.key, expected.key) / support::gradient_bound<T>, 1);
  EXPECT_LE(support::relative_error(found.value, expected.value) / support::gradient_bound<T>, 1);
}

/// Few queries and many keep states of one kind: the bits of forward are those without a tape.
TYPED_TEST(SimulatedBackward, ATapeChangesNoBitOfTheOutput) {
  using T = TypeParam;
  for (const int queries : {2, 70}) {
    const BackwardCase<T> c("simulated backward tape", {1, queries, 90, 4, 2, 32, 32});
    mha::AttentionTape<T, SimulatedCuda> tape;
    const auto with = mha::attention<SimulatedCuda>(c.q, c.k, c.v, causal, mha::record(tape));
    EXPECT_EQ(support::differing(with, mha::attention<SimulatedCuda>(c.q, c.k, c.v, causal)), 0u);
    expect_right<T>("few and many", {1, queries, 90, 4, 2, 32, 32}, causal);
  }
}

TYPED_TEST(SimulatedBackward, OrderOfBlocksAndBatchMatesChangeNoBits) {
  using T = TypeParam;
  using support::gpu::Order;
  BackwardCase<T> c("simulated backward order", sizes);
  const auto first = c.template gradients<SimulatedCuda>(causal);
  const auto same = [&](const auto& g) {
    EXPECT_EQ(support::differing(g.query, first.query), 0u);
    EXPECT_EQ(support::differing(g.key, first.key), 0u);
    EXPECT_EQ(support::differing(g.value, first.value), 0u);
  };
  for (const Order order : {Order{Order::backward}, Order{Order::shuffled, 5}}) {
    SimulatedCuda::state.order = order;
    same(c.template gradients<SimulatedCuda>(causal));
  }
  SimulatedCuda::state = {};
  for (Index i = 0; i < 70; ++i) c.q(1, i, 0, 0) = T(2.f);  // of the other sequence
  const auto other = c.template gradients<SimulatedCuda>(causal);
  for (Index k = 0; k < 90; ++k)
    for (Index d = 0; d < 16; ++d)
      EXPECT_EQ(static_cast<float>(other.key(0, k, 0, d)), static_cast<float>(first.key(0, k, 0, d)));
}

}  // namespace
