// SPDX-License-Identifier: Apache-2.0
// One call of each kind that threads share, on pools of several sizes, against one thread. They are few, for the thread
// sanitizer, and as small as what threads share may be.
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using support::BackwardCase;

/// What calls gave, number by number.
using Numbers = std::vector<float>;
template <class Range> void append(Numbers& to, const Range& from) { to.insert(to.end(), from.begin(), from.end()); }

Tensor<float, 3> rows(const char* name, Index batch, Index length, Index width) {
  Tensor<float, 3> x(batch, length, width);
  support::Random(name).fill(x);
  return x;
}

template <class B> B on(Index threads) { return B(mha::ThreadPool(threads)); }

/// calls(machine) on several threads and on one, twice on each pool: its threads sleep in between, or spin.
template <class B, class Calls> void expect_the_bits_of_one_thread(const Calls& calls) {
  const Numbers expected = calls(on<B>(1));
  ASSERT_FALSE(expected.empty());
  for (const Index threads : {2, 3, 5}) {
    const B machine = on<B>(threads);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(support::differing(calls(machine), expected), 0u) << threads << " threads";
  }
}

template <class B> class CallsOnThreads : public testing::Test {};
using Machines = testing::Types<mha::Cpu, mha::Systolic<>>;
TYPED_TEST_SUITE(CallsOnThreads, Machines);

TYPED_TEST(CallsOnThreads, QueriesAndHeads) {
  const BackwardCase<float> many("many queries", {2, 110, 130, 4, 2, 24, 24});
  const BackwardCase<float> few("heads of one group", {1, 4, 2100, 12, 1, 32, 32});
  expect_the_bits_of_one_thread<TypeParam>([&](const TypeParam& machine) {
    Numbers all;
    for (const auto* c : {&many, &few}) append(all, mha::attention(c->q, c->k, c->v, mha::Causal{}, machine));
    append(all, mha::attention_weights(many.q, many.k, mha::Causal{}, machine));
    return all;
  });
}

TYPED_TEST(CallsOnThreads, CallersOfOnePool) {
  // One has the pool, the others compute on their own threads.
  const BackwardCase<float> c("callers", {2, 110, 130, 4, 2, 24, 24});
  const auto expected = mha::attention(c.q, c.k, c.v, mha::Causal{}, on<TypeParam>(1));
  const auto machine = on<TypeParam>(3);
  std::atomic<std::size_t> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 3; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 3; ++i)
        wrong += support::differing(mha::attention(c.q, c.k, c.v, mha::Causal{}, machine), expected);
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0u);
}

TYPED_TEST(CallsOnThreads, ChunksOfKeys) {
  const BackwardCase<float> c("chunks", {1, 2, 2 * mha::detail::simd::key_chunk + 5, 6, 2, 32, 24});
  expect_the_bits_of_one_thread<TypeParam>([&](const TypeParam& machine) {
    Numbers all;
    append(all, mha::attention(c.q, c.k, c.v, mha::Causal{}, machine));
    return all;
  });
}

TYPED_TEST(CallsOnThreads, Backward) {
  // Pieces of one head, and heads.
  const BackwardCase<float> one("one head", {1, 310, 330, 1, 1, 24, 16}), heads("heads", {2, 40, 300, 4, 2, 16, 24});
  expect_the_bits_of_one_thread<TypeParam>([&](const TypeParam& machine) {
    Numbers all;
    for (const auto* c : {&one, &heads}) {
      mha::AttentionTape<float, TypeParam> tape;
      const auto out = mha::attention(c->q, c->k, c->v, mha::Causal{}, machine, mha::record(tape));
      const auto g = mha::attention_backward(c->d_out, c->q, c->k, c->v, out, tape, mha::Causal{}, machine);
      for (const auto* x : {&out, &g.query, &g.key, &g.value}) append(all, *x);
    }
    return all;
  });
}

template <class B> using Attention = mha::MultiHeadAttention<float, B, mha::MultiQuery, mha::Causal>;

/// A layer's rows, its gradient by them and those of its numbers.
template <class Layer>
Numbers there_and_back(const Layer& layer, const Tensor<float, 3>& x, const Tensor<float, 3>& dy) {
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  Numbers all;
  append(all, layer(x, tape));
  append(all, layer.backward(dy, tape, gradients));
  append(all, gradients.flat());
  return all;
}

TEST(LayersOnThreads, MultiHeadAttention) {
  const auto x = rows("layer x", 2, 130, 48), dy = rows("layer dy", 2, 130, 48);
  expect_the_bits_of_one_thread<mha::Cpu>([&](const mha::Cpu& machine) {
    Attention<mha::Cpu> layer({.d_model = 48, .num_heads = 6, .bias = true}, machine);
    layer.initialize(mha::XavierUniform{.seed = 4});
    return there_and_back(layer, x, dy);
  });
}

TEST(LayersOnThreads, FeedForward) {
  const auto x = rows("feed x", 2, 130, 48), dy = rows("feed dy", 2, 130, 48);
  expect_the_bits_of_one_thread<mha::Cpu>([&](const mha::Cpu& machine) {
    mha::FeedForward<float, mha::Cpu, mha::SwiGlu> layer({.d_model = 48, .d_hidden = 150}, machine);
    layer.initialize(mha::XavierUniform{.seed = 5});
    return there_and_back(layer, x, dy);
  });
}

TYPED_TEST(CallsOnThreads, Linear) {
  const auto x = rows("linear x", 3, 90, 130), dy = rows("linear dy", 3, 90, 300), few = rows("few rows", 1, 3, 130);
  expect_the_bits_of_one_thread<TypeParam>([&](const TypeParam& machine) {
    mha::Linear<float, TypeParam> linear({.inputs = 130, .outputs = 300}, machine);
    linear.initialize(mha::XavierUniform{.seed = 6});
    Numbers all = there_and_back(linear, x, dy);
    append(all, linear(few));
    return all;
  });
}

TEST(LayersOnThreads, LayerNorm) {
  const auto x = rows("norm x", 2, 600, 220), dy = rows("norm dy", 2, 600, 220);
  expect_the_bits_of_one_thread<mha::Cpu>([&](const mha::Cpu& machine) {
    const mha::LayerNorm<float, mha::Cpu> norm({.width = 220}, machine);
    return there_and_back(norm, x, dy);
  });
}

TYPED_TEST(CallsOnThreads, StepsOfACache) {
  // A prompt beside a row, rows that see several chunks of keys, then rows of both.
  constexpr Index length = mha::detail::simd::key_chunk + 310;
  const auto text = rows("cache", 1, length, 32);
  const auto part = [&](Index begin, Index end) { return mha::view(&text(0, begin, 0), end - begin, 32); };
  expect_the_bits_of_one_thread<TypeParam>([&](const TypeParam& machine) {
    Attention<TypeParam> layer({.d_model = 32, .num_heads = 10, .head_dim = 32}, machine);
    layer.initialize(mha::XavierUniform{.seed = 8});
    auto cache = mha::make_cache(layer, mha::Contiguous{.length = length}, {.sequences = 2});
    const std::vector<mha::SequenceId> ids{cache.add(), cache.add()};
    Numbers all;
    const auto step = [&](std::vector<Index> counts, Index begin) {
      Index n = 0;
      for (const Index count : counts) n += count;
      auto rows_of = cache.step(ids, counts);
      append(all, layer(part(begin, begin + n), rows_of[0]));
      rows_of.commit();
    };
    step({300, 1}, 0);
    // Keys and values of a long text, without the rows of its prompt.
    auto filled = cache.step(ids[0], length - 310);
    Tensor<float, 3> key(length - 310, 1, 32), value(length - 310, 1, 32);
    support::Random random("keys of a cache");
    random.fill(key);
    random.fill(value);
    filled.append(0, key, value);
    filled.commit();
    step({1, 1}, 301);
    step({3, 5}, 303);
    return all;
  });
}

}  // namespace
