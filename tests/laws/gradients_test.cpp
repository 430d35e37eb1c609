// SPDX-License-Identifier: Apache-2.0
// What gradients depend on and what they do not, on every backend that has a backward pass.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "random.hpp"
#include "units.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
template <class T> using Tensor4 = mha::Tensor<T, 4>;

template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
template <class Setup> class GradientsOn : public testing::Test {};
using Setups =
    testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::Cpu, mha::bfloat16>, On<mha::Cpu, mha::half>,
                   On<mha::Systolic<>, mha::bfloat16>, On<mha::EigenCpu, float>, On<mha::Reference, double>>;
TYPED_TEST_SUITE(GradientsOn, Setups);

/// Eigen's products give a row other last bits at another place of a tile.
template <class B> constexpr bool rows_share_bits = !std::is_same_v<B, mha::EigenCpu>;

/// Rows [0, count) of every sequence, or sequences and heads of a tensor.
template <class T>
Tensor4<T> part(const Tensor4<T>& from, Index rows, Index first_head = 0, Index heads = -1, Index repeats = 1) {
  if (heads < 0) heads = from.extent(2);
  Tensor4<T> to(from.extent(0), rows, heads * repeats, from.extent(3));
  for (Index b = 0; b < from.extent(0); ++b)
    for (Index i = 0; i < rows; ++i)
      for (Index h = 0; h < heads * repeats; ++h)
        for (Index d = 0; d < from.extent(3); ++d) to(b, i, h, d) = from(b, i, first_head + h / repeats, d);
  return to;
}
template <class T> BackwardCase<T> first_rows(const BackwardCase<T>& c, Index queries, Index keys) {
  BackwardCase<T> early;
  early.q = part(c.q, queries);
  early.k = part(c.k, keys);
  early.v = part(c.v, keys);
  early.d_out = part(c.d_out, queries);
  return early;
}

TYPED_TEST(GradientsOn, FutureTokensLeaveEarlierQueriesAsTheyWere) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const Index longest = std::is_same_v<B, mha::Reference> ? 130 : 700;
  const mha::Origin origin{5};
  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed()};
  const BackwardCase<T> c("future", {1, longest, longest + 5, 2, 1, 24, 16});
  const auto expect = [&](const auto&... extra) {
    const auto all = c.template gradients<B>(mha::Causal{}, origin, extra...);
    for (const Index rows : {Index{1}, Index{63}, std::min(Index{200}, longest - 1)}) {
      const auto early = first_rows(c, rows, rows + 5).template gradients<B>(mha::Causal{}, origin, extra...);
      if (rows_share_bits<B>)
        EXPECT_EQ(support::differing(early.query, part(all.query, rows)), 0u) << rows << " rows";
      else
        EXPECT_LE(support::relative_error(early.query, part(all.query, rows)), support::gradient_bound<T>);
      EXPECT_GT(support::differing(early.key, part(all.key, rows + 5)), 0u) << "later queries see the keys";
    }
  };
  expect();
  expect(dropout, seed);
  expect(mha::SoftCap{2.f}, mha::Sink({0.5f, -1.f}));
}

TYPED_TEST(GradientsOn, OfQueriesAndKeysAreEquallyLongAlongThem) {
  // q·dQ and k·dK are both the sum of logit times its gradient, of every group of heads.
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const BackwardSizes n{2, 61, 83, 6, 2, 20, 12};
  const BackwardCase<T> c("along", n);
  const auto expect = [&](const char* name, const auto&... extra) {
    const auto g = c.template gradients<B>(extra...);
    for (Index b = 0; b < n.batch; ++b)
      for (Index group = 0; group < n.kv_heads; ++group) {
        double of_queries = 0, of_keys = 0, size = 0;
        const auto add = [&](double& sum, T x, T dx) {
          const double term = support::to_double(x) * support::to_double(dx);
          sum += term;
          size += term * term;
        };
        for (Index i = 0; i < n.queries; ++i)
          for (Index h = 3 * group; h < 3 * group + 3; ++h)
            for (Index d = 0; d < n.head_dim; ++d) add(of_queries, c.q(b, i, h, d), g.query(b, i, h, d));
        for (Index k = 0; k < n.keys; ++k)
          for (Index d = 0; d < n.head_dim; ++d) add(of_keys, c.k(b, k, group, d), g.key(b, k, group, d));
        // Errors of terms are independent, of 16 bits' rounding at most some units each.
        EXPECT_NEAR(of_queries, of_keys, 20 * support::gradient_bound<T> * (1 + std::sqrt(size))) << name;
        EXPECT_GT(std::sqrt(size), 1);
      }
  };
  expect("full");
  expect("causal", mha::Causal{}, mha::Sink(std::vector<float>(6, 0.5f)));
  expect("dropout", mha::SlidingWindow{.left = 30, .right = 2}, mha::Dropout{.p = 0.25f},
         mha::DropoutSeed{support::seed()});
  expect("scores", mha::SoftCap{2.f}, mha::Alibi{}, mha::Scale{0.5});
}

TYPED_TEST(GradientsOn, OfAGroupAreTheSumsOfRepeatedHeads) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const BackwardSizes n{2, 75, 90, 6, 2, 24, 16};
  const BackwardCase<T> c("groups", n);
  BackwardCase<T> repeated = c;
  repeated.k = part(c.k, n.keys, 0, 2, 3);
  repeated.v = part(c.v, n.keys, 0, 2, 3);
  const auto expect = [&](const auto&... extra) {
    const auto g = c.template gradients<B>(extra...), each = repeated.template gradients<B>(extra...);
    EXPECT_EQ(support::differing(g.query, each.query), 0u);
    const auto sums = [&](const Tensor4<T>& heads) {
      Tensor4<double> to(n.batch, n.keys, n.kv_heads, heads.extent(3));
      for (Index b = 0; b < n.batch; ++b)
        for (Index k = 0; k < n.keys; ++k)
          for (Index h = 0; h < n.heads; ++h)
            for (Index d = 0; d < heads.extent(3); ++d) to(b, k, h / 3, d) += support::to_double(heads(b, k, h, d));
      return to;
    };
    EXPECT_LE(support::relative_error(g.key, sums(each.key)), support::gradient_bound<T>);
    EXPECT_LE(support::relative_error(g.value, sums(each.value)), support::gradient_bound<T>);
  };
  expect();
  expect(mha::Causal{}, mha::Alibi{});
  expect(mha::Dropout{.p = 0.25f}, mha::DropoutSeed{support::seed()});
}

TYPED_TEST(GradientsOn, OfAHeadDoNotDependOnTheOthers) {
  // With as many heads of keys as of queries every head is attention of its own.
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const BackwardSizes n{2, 75, 90, 3, 3, 24, 16};
  const BackwardCase<T> c("heads", n);
  const auto all = c.template gradients<B>(mha::Causal{});
  for (Index h = 0; h < n.heads; ++h) {
    BackwardCase<T> one;
    one.q = part(c.q, n.queries, h, 1);
    one.k = part(c.k, n.keys, h, 1);
    one.v = part(c.v, n.keys, h, 1);
    one.d_out = part(c.d_out, n.queries, h, 1);
    const auto alone = one.template gradients<B>(mha::Causal{});
    EXPECT_EQ(support::differing(alone.query, part(all.query, n.queries, h, 1)), 0u);
    EXPECT_EQ(support::differing(alone.key, part(all.key, n.keys, h, 1)), 0u);
    EXPECT_EQ(support::differing(alone.value, part(all.value, n.keys, h, 1)), 0u);
  }
}

TYPED_TEST(GradientsOn, AreZeroOfKeysThatNobodySees) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const BackwardSizes n{2, 70, 150, 4, 2, 24, 16};
  const std::vector<Index> lengths{41, 130};
  BackwardCase<T> c("hidden", n);
  const T nan = support::Random::rounded<T>(std::numeric_limits<double>::quiet_NaN());
  for (Index b = 0; b < n.batch; ++b)
    for (Index k = lengths[static_cast<std::size_t>(b)]; k < n.keys; k += 2) c.k(b, k, 0, 3) = c.v(b, k, 1, 2) = nan;
  const auto expect = [&](Index first_hidden_of_all, const auto&... extra) {
    mha::AttentionTape<T, B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, extra..., mha::record(tape));
    Tensor4<T> dk(n.batch, n.keys, n.kv_heads, n.head_dim), dv(n.batch, n.keys, n.kv_heads, n.value_dim);
    support::poison_all(dk);
    support::poison_all(dv);
    mha::attention_backward_into({{}, dk, dv}, c.d_out, c.q, c.k, c.v, out, tape, extra...);
    for (Index b = 0; b < n.batch; ++b)
      for (Index k = 0; k < n.keys; ++k) {
        const bool hidden = k >= std::min(first_hidden_of_all, lengths[static_cast<std::size_t>(b)]);
        for (Index g = 0; g < n.kv_heads; ++g) {
          for (Index d = 0; d < n.head_dim; ++d) {
            if (hidden)
              ASSERT_EQ(support::bits(dk(b, k, g, d)), support::bits(T(mha::Accumulator<T>(0)))) << b << " " << k;
            else
              ASSERT_TRUE(std::isfinite(support::to_double(dk(b, k, g, d)))) << b << " " << k;
          }
          for (Index d = 0; d < n.value_dim; ++d) {
            if (hidden)
              ASSERT_EQ(support::bits(dv(b, k, g, d)), support::bits(T(mha::Accumulator<T>(0)))) << b << " " << k;
            else
              ASSERT_TRUE(std::isfinite(support::to_double(dv(b, k, g, d)))) << b << " " << k;
          }
        }
      }
  };
  const mha::Padding padding{lengths};
  expect(n.keys, padding);
  expect(n.keys, padding, mha::SoftCap{2.f}, mha::Sink({0.5f, -1.f, 0.f, 2.f}));
  expect(30 + n.queries, padding, mha::Causal{}, mha::Origin{30});  // the last query is at position 99
}

/// All gradients of a call on a backend, its bias's among them.
template <class B, class... Score>
std::vector<float> gradients_on(const B& backend, const BackwardCase<float>& c, const Score&... score) {
  const Index heads = c.q.extent(2);
  const mha::Sink sink(std::vector<float>(static_cast<std::size_t>(heads), 0.5f));
  Tensor4<float> bias(1, 1, c.q.extent(1), c.k.extent(1)), d_bias = bias;
  support::Random("bias").fill(bias);
  support::poison_all(d_bias);
  mha::AttentionTape<float, B> tape;
  const auto run = [&](const auto&... extra) {
    const auto out = mha::attention(c.q, c.k, c.v, extra..., mha::record(tape));
    return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, extra..., mha::BiasGradient(d_bias));
  };
  const auto g = run(mha::Causal{}, sink, mha::Dropout{.p = 0.1f}, mha::DropoutSeed{support::seed()},
                     mha::AdditiveBias{bias}, score..., backend);
  std::vector<float> all(d_bias.begin(), d_bias.end());
  for (const auto* x : {&g.query, &g.key, &g.value}) all.insert(all.end(), x->begin(), x->end());
  all.insert(all.end(), g.sink.begin(), g.sink.end());
  if constexpr (sizeof...(Score) > 0) all.insert(all.end(), g.score.numbers().begin(), g.score.numbers().end());
  return all;
}

/// A hundred repeats in turns on 1, 2, 3 and 5 threads have the bits of bits_on(executor) on none. More repeats of each
/// number would take seconds.
template <class BitsOn> void expect_same_bits_in_repeats(const BitsOn& bits_on) {
  const auto alone = bits_on(mha::Serial{});
  const mha::ThreadPool pools[] = {mha::ThreadPool(1), mha::ThreadPool(2), mha::ThreadPool(3), mha::ThreadPool(5)};
  for (int turn = 0; turn < 25; ++turn)
    for (const mha::ThreadPool& pool : pools)
      ASSERT_EQ(support::differing(bits_on(pool), alone), 0u) << pool.workers() << " threads, turn " << turn;
}
template <template <class> class On> void expect_same_bits_of_calls_in_repeats() {
  const auto expect = [](const BackwardSizes& n, const auto&... score) {
    const BackwardCase<float> c("repeats", n);
    expect_same_bits_in_repeats(
        [&]<class Threads>(const Threads& threads) { return gradients_on(On<Threads>{threads}, c, score...); });
  };
  expect({1, 150, 170, 4, 2, 24, 16});
  expect({2, 60, 70, 2, 1, 16, 16}, mha::AlibiSlopes({0.25f, 0.125f}));
}

TEST(GradientsOnAnyThreads, HaveTheSameBitsInAHundredRepeats) { expect_same_bits_of_calls_in_repeats<mha::CpuWith>(); }
TEST(GradientsOnAnyThreadsByEigen, HaveTheSameBitsInAHundredRepeats) {
  expect_same_bits_of_calls_in_repeats<mha::EigenCpuWith>();
}

template <class Threads> using SystolicOn = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>;
class GradientsOnAnyThreadsOfUnit : public unit::OnUnit {};
INSTANTIATE_TEST_SUITE_P(Units, GradientsOnAnyThreadsOfUnit, testing::ValuesIn(mha::detail::systolic::all_units),
                         unit::unit_name);
TEST_P(GradientsOnAnyThreadsOfUnit, HaveTheSameBitsInAHundredRepeats) {
  expect_same_bits_of_calls_in_repeats<SystolicOn>();
}

TEST(GradientsOfALayer, HaveTheSameBitsInAHundredRepeatsOnAnyThreads) {
  mha::Tensor<float, 3> x(2, 130, 64), dy(2, 130, 64);
  support::Random random("repeats of a layer");
  random.fill(x);
  random.fill(dy);
  expect_same_bits_in_repeats([&]<class Threads>(const Threads& threads) {
    mha::MultiHeadAttention<float, mha::CpuWith<Threads>, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>, mha::QkNorm,
                            mha::GatedHeads, mha::Sink, mha::Dropout>
        layer({.d_model = 64, .num_heads = 4, .bias = true}, mha::Sink({0.f, 1.f, -1.f, 0.5f}), mha::Dropout{.p = 0.1f},
              mha::CpuWith<Threads>(threads));
    layer.initialize(mha::XavierUniform{.seed = 5});
    auto tape = layer.tape();
    auto to = layer.gradients();
    static_cast<void>(layer(x, tape, mha::DropoutSeed{support::seed()}));
    mha::Tensor<float, 3> dx(2, 130, 64);
    layer.backward(dy, tape, to, mha::into(dx));
    std::vector<float> all(dx.begin(), dx.end());
    all.insert(all.end(), to.flat().begin(), to.flat().end());
    for (Index h = 0; h < 4; ++h) all.push_back(to.sink(h));
    return all;
  });
}

TEST(GradientsOfALayer, WithAsManyHeadsOfKeysHaveTheBitsOfMultiHead) {
  const auto gradients = [](auto layer) {
    layer.initialize(mha::XavierUniform{.seed = 5});
    mha::Tensor<float, 3> x(2, 70, 32), dy(2, 70, 32), dx(2, 70, 32);
    support::Random random("layer");
    random.fill(x);
    random.fill(dy);
    auto tape = layer.tape();
    auto to = layer.gradients();
    static_cast<void>(layer(x, tape));
    layer.backward(dy, tape, to, mha::into(dx));
    std::vector<float> all(dx.begin(), dx.end());
    for (const float number : to.flat()) all.push_back(number);
    return all;
  };
  const mha::Config config{.d_model = 32, .num_heads = 4, .bias = true};
  const auto grouped = gradients(mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<4>, mha::Causal>(config));
  const auto multi_head = gradients(mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>(config));
  EXPECT_EQ(support::differing(grouped, multi_head), 0u);
}

}  // namespace
