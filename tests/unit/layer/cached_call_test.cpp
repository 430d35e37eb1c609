// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "cache_picture.hpp"
#include "message_of.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::ShapeError;
using mha::Tensor;
using support::message_of;
using support::picture;

constexpr Index E = 16;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>;
const mha::Config config{.d_model = E, .num_heads = 4};

Layer drawn(std::uint64_t seed) {
  Layer layer(config);
  layer.initialize(mha::XavierUniform{.seed = seed});
  return layer;
}

Tensor<float, 2> random_rows(Index rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor<float, 2> x(rows, E);
  std::generate(x.begin(), x.end(), [&] { return normal(random); });
  return x;
}
mha::TensorView<const float, 2> part(const Tensor<float, 2>& x, Index begin, Index end) {
  return mha::view(&x(begin, 0), end - begin, E);
}
float furthest(const Tensor<float, 2>& a, const Tensor<float, 2>& b) {
  float d = 0;
  for (std::size_t i = 0; i < a.size(); ++i) d = std::max(d, std::abs(a.data()[i] - b.data()[i]));
  return d;
}

TEST(CachedCall, BatchesAreSequencesInTheirOrder) {
  const Layer layer = drawn(1);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 3});
  for (int i = 0; i < 3; ++i) cache.add();
  Tensor<float, 3> x(3, 4, E);
  const auto flat = random_rows(12, 2);
  std::copy(flat.begin(), flat.end(), x.begin());
  const auto expected = layer(x);
  const auto batch = layer.prefill(x, cache);  // (B, n, E)
  EXPECT_TRUE(std::equal(batch.begin(), batch.end(), expected.begin()));
  for (const SequenceId id : cache.ids()) cache.truncate(id, 0);
  const auto rows = layer.prefill(flat, cache);  // (B·n, E)
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin()));
}

TEST(CachedCall, LogSumExpsAreThoseOfTheRows) {
  const Layer layer = drawn(3);
  auto cache = mha::make_cache(layer, Contiguous{.length = 9});
  cache.add();
  const auto x = random_rows(9, 4);
  Tensor<float, 2> whole(4, 9), last(4, 2);
  const auto y = layer(x, mha::LogSumExp(whole));
  static_cast<void>(layer.prefill(part(x, 0, 7), cache));
  static_cast<void>(layer.step(part(x, 7, 9), cache, mha::LogSumExp(last)));
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 2; ++i) EXPECT_EQ(last(h, i), whole(h, 7 + i));
}

TEST(CachedCall, MasksOfTheCallSeeAbsolutePositions) {
  const Layer layer = drawn(5);
  auto cache = mha::make_cache(layer, Contiguous{.length = 12});
  cache.add();
  const auto x = random_rows(12, 6);
  const auto whole = layer(x, mha::SlidingWindow{.left = 3});
  Tensor<float, 2> y(12, E);
  for (Index i = 0; i < 12; i += 3)
    layer.step(part(x, i, i + 3), cache, mha::SlidingWindow{.left = 3}, mha::into(mha::view(&y(i, 0), 3, E)));
  EXPECT_EQ(furthest(y, whole), 0);
}

TEST(CachedCall, GatesSinksAndScoresArePartOfIt) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal, mha::Alibi, mha::Sink, mha::QkNorm, mha::GatedHeads> layer(
      config, mha::Alibi{}, mha::Sink{std::vector<float>{0.1f, 0.2f, -0.3f, 1}});
  layer.initialize(mha::XavierUniform{.seed = 7});
  auto cache = mha::make_cache(layer, Paged{.pages = 3, .length = 40, .page = 16});
  cache.add();
  const auto x = random_rows(40, 8);
  const auto whole = layer(x);
  Tensor<float, 2> y(40, E);
  for (Index i = 0; i < 40; i += 5) layer.step(part(x, i, i + 5), cache, mha::into(mha::view(&y(i, 0), 5, E)));
  EXPECT_EQ(furthest(y, whole), 0);
}

TEST(CachedCall, RunsOnTheOtherBackendsOfTheHost) {
  const auto x = random_rows(20, 9);
  const auto check = [&](auto layer, float tolerance) {
    layer.initialize(mha::XavierUniform{.seed = 10});
    auto cache = mha::make_cache(layer, Paged{.pages = 2, .length = 20, .page = 16});
    cache.add();
    const auto whole = layer(x);
    Tensor<float, 2> y(20, E);
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, 11}, {11, 12}, {12, 20}})
      layer.step(part(x, begin, end), cache, mha::into(mha::view(&y(begin, 0), end - begin, E)));
    EXPECT_LE(furthest(y, whole), tolerance);
  };
  check(mha::MultiHeadAttention<float, mha::Reference, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>(config), 0);
  check(mha::MultiHeadAttention<float, mha::EigenCpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>(config), 1e-5f);
}

TEST(CachedCall, ALayerThatThrowsLeavesTheCacheAsItWas) {
  const Layer layer = drawn(13);
  auto cache = mha::make_cache(layer, Paged{.pages = 4, .length = 64, .page = 16}, {.layers = 2});
  const SequenceId id = cache.add();
  const auto x = random_rows(30, 14);
  {
    auto step = cache.step(id, 20);
    for (Index i = 0; i < 2; ++i) static_cast<void>(layer(part(x, 0, 20), step[i]));
    step.commit();
  }
  const auto before = cache.save(id);
  try {
    auto step = cache.step(id, 10);
    static_cast<void>(layer(part(x, 20, 30), step[0]));
    static_cast<void>(layer(part(x, 20, 29), step[1]));  // a row too few
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_STREQ(e.what(), "layer: x has 9 rows, but the step has 10");
  }
  EXPECT_EQ(cache.save(id), before);
  EXPECT_EQ(cache.free_pages(), 2);
  auto step = cache.step(id, 10);
  for (Index i = 0; i < 2; ++i) static_cast<void>(layer(part(x, 20, 30), step[i]));
  step.commit();
  EXPECT_EQ(cache.length(id), 30);
}

TEST(CachedCall, RefusesWhatDoesNotFit) {
  const Layer layer = drawn(15);
  const auto x = random_rows(8, 16);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.layers = 2, .sequences = 3});
  const auto rows = [&](const auto& l, const auto& in, auto& of, const std::vector<Index>& n, Index i = 0) {
    return message_of([&] {
      auto step = of.step(of.ids(), n);
      static_cast<void>(l(in, step[i]));
    });
  };
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.step(x, cache)); }),
            "step: the cache has 2 layers, expected 1: make a step of it, cache.step(…), and call each layer with its "
            "part, layer(x, step[i])");
  cache.add();
  cache.add();
  EXPECT_EQ(rows(layer, x, cache, {3, 4}), "layer: x has 8 rows, but the step has 7");
  EXPECT_EQ(rows(layer, x, cache, {4, 4}, 2), "step: there is no layer 2, the cache has 2");
  Tensor<float, 3> batch(2, 4, E), three(3, 2, E);
  EXPECT_EQ(rows(layer, batch, cache, {4, 3}), "layer: x has 4 rows a sequence, but the step has 3 for sequence 1");
  EXPECT_EQ(rows(layer, three, cache, {4, 2}), "layer: x has batch 3, but the step has 2 sequences");
  EXPECT_EQ(message_of([&] {
              auto step = cache.step(4);
              static_cast<void>(layer(x, step[1]));
              static_cast<void>(layer(x, step[1]));
            }),
            "layer: layer 1 of the cache was written in this step already");
  const auto other = [&](const mha::Config& c) {
    Layer l(c);
    l.initialize(mha::XavierUniform{.seed = 1});
    return rows(l, x, cache, {4, 4});
  };
  EXPECT_EQ(other({.d_model = E, .num_heads = 4, .head_dim = 6}),
            "layer: the layer has head size 6 but the cache has head size 4");
  EXPECT_EQ(other({.d_model = E, .num_heads = 4, .value_dim = 5}),
            "layer: the layer has value head size 5 but the cache has value head size 4");
  EXPECT_EQ(other({.d_model = E, .num_heads = 4, .kv_model = 12}),
            "layer: x has width 16 but keys and values are made of rows of width 12");
  EXPECT_EQ(other({.d_model = E, .num_heads = 4, .kv_model = 12, .value_model = E}),
            "layer: x has width 16 but keys are made of rows of width 12");
  EXPECT_EQ(other({.d_model = E, .num_heads = 4, .value_model = 12}),
            "layer: x has width 16 but values are made of rows of width 12");
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> heads(config);
  heads.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(rows(heads, x, cache, {4, 4}), "layer: the layer has 4 key/value heads but the cache has 2");

  auto single = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 3});
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(x, single)); }),
            "prefill: the cache has no sequence: add() one first");
  for (int i = 0; i < 3; ++i) single.add();
  EXPECT_EQ(
      message_of([&] { static_cast<void>(layer.prefill(x, single)); }),
      "layer: 8 rows are no multiple of the cache's 3 sequences: a step of different rows is made by cache.step()");
  for (const SequenceId id : single.ids()) EXPECT_EQ(single.length(id), 0);
}

TEST(CachedCall, RefusesACacheWhoseValuesAreInItsKeys) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::KvCache<Contiguous, float> cache({.heads = 2, .dim = 4, .value_dim = 4, .values_in_keys = true},
                                        Contiguous{.length = 8});
  cache.add();
  const Tensor<float, 2> x(1, 8);
  const std::string sentence =
      "layer: the cache has its values in its keys (KvShape::values_in_keys), a layer stores both: use append() and "
      "attention() over source()";
  const std::string before = picture(cache);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(x, cache)); }), sentence);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.step(x, cache)); }), sentence);
  {
    const auto step = cache.step(1);
    EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, step[0])); }), sentence);
    EXPECT_EQ(message_of([&] { static_cast<void>(layer.explain(step[0])); }), sentence);
    EXPECT_EQ(message_of([&] { static_cast<void>(layer.cost(step[0])); }), sentence);
    EXPECT_EQ(message_of([&] { layer.project_memory(x, step[0]); }),
              "project_memory" + sentence.substr(sentence.find(':')));
  }
  EXPECT_EQ(picture(cache), before);
}

TEST(CachedCall, RefusesWeightsThatHaveChangedSince) {
  Layer layer = drawn(17);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 2});
  cache.add();
  const auto x = random_rows(4, 18);
  static_cast<void>(layer.step(x, cache));
  layer.update([](auto& p) { p.key.matrix()(0, 0) += 1; });
  EXPECT_EQ(
      message_of([&] { static_cast<void>(layer.step(x, cache)); }),
      "layer: sequence 0 has keys and values of layer 0 that were projected with other weights than the layer has now: "
      "truncate it to 0, or add() a new one");
  cache.truncate(cache.ids()[0], 0);
  static_cast<void>(layer.step(x, cache));
}

TEST(CachedCall, ADroppedStepDoesNotChangeWhoseWeightsTheKeysAre) {
  const Layer layer = drawn(25), other = drawn(26);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8});
  const SequenceId id = cache.add();
  const auto x = random_rows(4, 27);
  static_cast<void>(layer.step(x, cache));
  {
    auto step = cache.step(id, 1);
    Tensor<float, 3> row(1, 2, 4);
    step.append(0, row, row);  // of no layer's weights, and dropped
  }
  EXPECT_NE(message_of([&] { static_cast<void>(other.step(part(x, 0, 1), cache)); }), "");
  const auto saved = cache.save(id);
  cache.remove(id);
  const SequenceId restored = cache.restore(saved);
  {
    auto step = cache.step(restored, 1);
    static_cast<void>(other(part(x, 0, 1), step[0]));
  }
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.step(part(x, 0, 1), cache)); }), "");
}

template <class B> struct Conversation {
  using Attention = mha::MultiHeadAttention<float, B, mha::GroupedQuery<2>, mha::Causal>;
  Attention layer{config};
  mha::CacheOf<Attention, Paged> cache;

  Conversation() : cache(mha::make_cache(layer, Paged{.pages = 8, .length = 64, .page = 16})) {
    layer.initialize(mha::XavierUniform{.seed = 40});
    static_cast<void>(cache.add());
  }
};

// A cache moves with what owns it, between the steps of a text.
template <class B> void expect_moved_steps() {
  using Attention = typename Conversation<B>::Attention;
  static_assert(std::same_as<mha::CacheOf<Attention, Paged, mha::bfloat16>,
                             decltype(mha::make_cache<mha::bfloat16>(std::declval<const Attention&>(),
                                                                     std::declval<const Paged&>()))>);
  Conversation<B> stays, moves;
  const auto prompt = random_rows(40, 41), next = random_rows(1, 42);
  static_cast<void>(stays.layer.prefill(prompt, stays.cache));
  static_cast<void>(moves.layer.prefill(prompt, moves.cache));
  Conversation<B> moved(std::move(moves));
  const auto expected = stays.layer.step(next, stays.cache), found = moved.layer.step(next, moved.cache);
  EXPECT_EQ(furthest(expected, found), 0);
}
TEST(CachedCall, CachesMove) {
  expect_moved_steps<mha::Cpu>();
  expect_moved_steps<mha::Systolic<>>();
}

// Each piece of a prompt has its own rows of the residual.
TEST(CachedCall, PrefillAndStepsAddAResidual) {
  const Layer layer = drawn(32);
  const mha::SlidingWindow window{.left = 3};
  auto ring = mha::make_cache(layer, Ring{.left = 3, .rows = 2}, {.sequences = 2});
  static_cast<void>(ring.add());
  static_cast<void>(ring.add());
  const auto text = random_rows(14, 33), few = random_rows(13, 35);
  auto rows = random_rows(15, 34);  // two places of 14 rows each, one row apart
  const auto x = mha::view(text.data(), 2, 7, E);
  const mha::TensorView<float, 3> r = mha::view(rows.data(), 2, 7, E), late = mha::view(&rows(1, 0), 2, 7, E);
  EXPECT_EQ(message_of([&] { layer.prefill(x, ring, window, mha::residual(r), mha::into(late)); }),
            "prefill: the result overlaps the residual and is not the residual itself: an earlier piece would be "
            "written over rows still to be read");
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(text, ring, window, mha::residual(few))); }),
            "layer: x has length 14 but the residual has length 13");
  for (const auto& id : ring.ids()) EXPECT_EQ(ring.length(id), 0);
  const auto expected = layer(x, window, mha::residual(r));
  layer.prefill(x, ring, window, mha::residual(r), mha::into(r));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin()));

  auto kept = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 2});
  static_cast<void>(kept.add());
  static_cast<void>(kept.add());
  const auto next = random_rows(2, 36), of_next = random_rows(2, 37);
  const auto plain = layer.step(next, kept);
  for (const auto& id : kept.ids()) kept.truncate(id, 0);
  auto sum = layer.step(next, kept, mha::residual(of_next));
  for (std::size_t i = 0; i < sum.size(); ++i) sum.data()[i] -= of_next.data()[i];
  EXPECT_LE(furthest(sum, plain), 1e-6f);
}

// What can be checked of all pieces is checked before the first.
struct ScoreOfSixKeys {
  static constexpr mha::Role role = mha::Role::score;
  template <class A> A operator()(A logit, Index, Index, Index, Index) const { return logit; }
  ScoreOfSixKeys prepared(const mha::CallShape& shape) const {
    mha::detail::require(shape.keys <= 6, shape.keys, " keys");
    return *this;
  }
};

TEST(CachedCall, PrefillChecksAllPiecesFirst) {
  const Layer layer = drawn(28);
  const mha::SlidingWindow window{.left = 3};
  const auto x = random_rows(8, 29);
  auto ring = mha::make_cache(layer, Ring{.left = 3, .rows = 2}, {.sequences = 2});
  const SequenceId a = ring.add();
  Tensor<float, 2> y(9, E);
  for (const Index rows : {7, 9}) {
    const std::string sentence =
        message_of([&] { layer.prefill(x, ring, window, mha::into(mha::view(y.data(), rows, E))); });
    EXPECT_EQ(sentence, "layer: x has length 8 but the result has length " + std::to_string(rows));
    EXPECT_EQ(ring.length(a), 0);
  }
  auto rows = random_rows(9, 30);
  EXPECT_EQ(
      message_of([&] { layer.prefill(part(rows, 1, 9), ring, window, mha::into(mha::view(rows.data(), 8, E))); }),
      "prefill: the result overlaps x and is not x itself: an earlier piece would be written over rows still to be "
      "read");
  EXPECT_EQ(ring.length(a), 0);
  const auto expected = layer(part(rows, 0, 8), window);
  layer.prefill(part(rows, 0, 8), ring, window, mha::into(mha::view(rows.data(), 8, E)));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin()));

  // A mask or a score that does not fit a later piece is refused before the first.
  const std::string before = picture(ring);
  const auto next = random_rows(8, 31);
  const auto refuses = [&](const std::string& sentence, const auto&... policies) {
    EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(next, ring, policies...)); }), sentence);
    EXPECT_EQ(picture(ring), before);
  };
  refuses(
      "layer: the mask may show positions 0 to 4, which the Ring has dropped, to the queries from position 8 on: use a "
      "mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a larger "
      "left");
  ring.remove(a);
  const SequenceId c = ring.add();
  const auto fresh = picture(ring);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(next, ring)); }),
            "layer: the mask may show positions 0 to 0, which the Ring has dropped, to the queries from position 4 on: "
            "use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a "
            "larger left");
  EXPECT_EQ(picture(ring), fresh);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(next, ring, window, ScoreOfSixKeys{})); }), "8 keys");
  EXPECT_EQ(picture(ring), fresh);
  static_cast<void>(layer.prefill(next, ring, window));
  EXPECT_EQ(ring.length(c), 8);

  auto contiguous = mha::make_cache(layer, Contiguous{.length = 7});
  const SequenceId b = contiguous.add();
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.prefill(x, contiguous)); }),
            "prefill: sequence 0 of length 0 and 8 rows more would be longer than the cache's 7");
  EXPECT_EQ(contiguous.length(b), 0);
}

// A ring may be asked for what it has dropped only if nothing of it can be seen: it asks the mask of the call.
// A Ring takes a prompt in pieces; what a mask or a score depends on is the call that was made, not a piece of it.
TEST(CachedCall, APromptInPiecesHasTheMasksOfTheWholePrompt) {
  constexpr Index B = 2, L = 9;
  Tensor<float, 3> x(B, L, E);
  std::ranges::copy(random_rows(B * L, 31), x.begin());
  const auto expect_whole = [&]<class Mask>(const Mask& mask, const char* what, const auto&... of_call) {
    mha::MultiHeadAttention<float, mha::Cpu, Mask> layer(config, mask);
    layer.initialize(mha::XavierUniform{.seed = 3});
    auto cache = mha::make_cache(layer, Ring{.left = 12, .rows = 4}, {.sequences = B});
    for (Index b = 0; b < B; ++b) cache.add();
    const auto y = layer.prefill(x, cache, of_call...), expected = layer(x, of_call...);
    for (Index b = 0; b < B; ++b)
      for (Index l = 0; l < L; ++l)
        for (Index e = 0; e < E; ++e)
          ASSERT_EQ(y(b, l, e), expected(b, l, e)) << what << ": row " << l << " of sequence " << b;
  };
  const mha::SlidingWindow window{.left = 12};
  expect_whole(window, "a window");
  expect_whole(mha::CausalTopLeft{} && window, "CausalTopLeft");
  const std::vector<int> left{4, 3}, right{9, 5}, ids{0, 0, 1, 1, 1, 1, 2, 2, 2};
  expect_whole(window, "LeftPadding", mha::LeftPadding{left});
  expect_whole(window, "Padding", mha::Padding{right});
  expect_whole(window, "ids of all sequences", mha::Document{ids});
  Tensor<float, 2> bias(L, L);
  for (Index q = 0; q < L; ++q)
    for (Index k = 0; k < L; ++k) bias(q, k) = float(q * k % 5) - 2;
  expect_whole(window, "a table", mha::AdditiveBias{bias});
}

// Steps of a cache that was assigned are over, those with more layers too; one that was moved from has no layer.
TEST(CachedCall, AStepDoesNotOutliveTheCacheItIsOf) {
  const Layer layer = drawn(1);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.layers = 3});
  const SequenceId first = cache.add();
  const auto x = random_rows(2, 5);
  auto step = cache.step(first, 2);
  const auto last = step[2];
  for (Index i = 0; i < 3; ++i) static_cast<void>(layer(x, step[i]));
  step.commit();
  cache = mha::make_cache(layer, Contiguous{.length = 8});
  const SequenceId second = cache.add();
  auto now = cache.step(second, 2);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, last)); }), "layer: the step has ended");
  static_cast<void>(layer(x, now[0]));
  now.commit();

  const auto taken = std::move(cache);
  EXPECT_EQ(taken.layers(), 1);
  EXPECT_EQ(cache.layers(), 0);
  auto none = cache.step(0);
  EXPECT_EQ(message_of([&] { static_cast<void>(none[0]); }), "step: there is no layer 0, the cache has 0");
}

TEST(CachedCall, RaggedRowsDoNotAttendToAProjectedBatch) {
  const Layer layer = drawn(1);
  Tensor<float, 3> memory(3, 5, E);
  std::ranges::copy(random_rows(15, 3), memory.begin());
  const auto kept = layer.project_memory(memory);
  const std::vector<int> offsets{0, 2, 4, 7};
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(random_rows(7, 4), kept, mha::Ragged{offsets})); }),
            "layer: the memory was projected as a batch of 3, but Ragged cuts the rows of one: project its rows one "
            "after another, with the same Ragged");
}

TEST(CachedCall, ARingGoesBackWhereItKeepsAll) {
  const Layer layer = drawn(2);
  using Windowed = mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::SlidingWindow, mha::Rotary<>>;
  Windowed windowed(config, mha::SlidingWindow{.left = 5});
  windowed.borrow(layer);
  const auto x = random_rows(24, 7);
  for (const Index length : {10, 20}) {  // without and with positions that were dropped
    auto cache = mha::make_cache(windowed, Ring{.left = 5, .rows = 4, .first = 2});
    const SequenceId id = cache.add();
    static_cast<void>(windowed.prefill(part(x, 0, length), cache));
    EXPECT_EQ(cache.can_truncate(id, 3), length == 10);
    for (const Index back : {2, 1, 0}) {
      ASSERT_TRUE(cache.can_truncate(id, back));
      cache.truncate(id, back);
      auto fresh = mha::make_cache(windowed, Ring{.left = 5, .rows = 4, .first = 2});
      fresh.add();
      static_cast<void>(windowed.prefill(part(x, 0, back), fresh));
      // Positions behind the first ones are this prompt's own.
      const auto y = windowed.prefill(part(x, 8, 24), cache), expected = windowed.prefill(part(x, 8, 24), fresh);
      EXPECT_EQ(furthest(y, expected), 0) << "back to " << back << " of " << length;
      EXPECT_EQ(cache.oldest(id), fresh.oldest(fresh.ids()[0]));
    }
    // So does a fork.
    auto two = mha::make_cache(windowed, Ring{.left = 5, .rows = 4, .first = 2}, {.sequences = 2});
    const SequenceId whole = two.add();
    static_cast<void>(windowed.prefill(part(x, 0, length), two));
    static_cast<void>(two.fork(whole, 1));
    two.remove(whole);
    auto fresh = mha::make_cache(windowed, Ring{.left = 5, .rows = 4, .first = 2});
    fresh.add();
    static_cast<void>(windowed.prefill(part(x, 0, 1), fresh));
    EXPECT_EQ(furthest(windowed.prefill(part(x, 8, 24), two), windowed.prefill(part(x, 8, 24), fresh)), 0);
  }
}

TEST(CachedCall, ARingRefusesAMaskThatShowsWhatItDropped) {
  const Layer layer = drawn(19);
  const auto x = random_rows(30, 20);
  auto cache = mha::make_cache(layer, Ring{.left = 5, .rows = 4});
  const SequenceId id = cache.add();
  const mha::SlidingWindow fits{.left = 5}, far{.left = 6};
  static_cast<void>(layer.prefill(part(x, 0, 9), cache, fits));
  // As long as nothing is dropped, every mask fits.
  cache.truncate(id, 5);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.step(part(x, 5, 9), cache)); }), "");
  // What is refused has written nothing.
  std::string before = picture(cache);
  const auto refuses = [&](const auto& mask, Index rows, const char* sentence) {
    EXPECT_EQ(message_of([&] {
                static_cast<void>(layer.step(part(x, cache.length(id), cache.length(id) + rows), cache, mask));
              }),
              sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses(
      mha::Causal{}, 4,
      "layer: the mask may show positions 0 to 3, which the Ring has dropped, to the queries from position 9 on: use "
      "a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a larger "
      "left");
  refuses(
      far, 4,
      "layer: the mask may show positions 0 to 3, which the Ring has dropped, to the queries from position 9 on: use "
      "a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a larger "
      "left");
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.step(part(x, 9, 13), cache, fits)); }), "");
  // A functor of the user's has no tile(), so that it may show anything.
  before = picture(cache);
  refuses(
      mha::mask([](int, int, int q, int k) { return q - k <= 5; }), 1,
      "layer: the mask may show positions 0 to 4, which the Ring has dropped, to the queries from position 13 on: use "
      "a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a larger "
      "left");
}

// So it is with keys and values that were made elsewhere: whoever reads them says by a mask what is needed.
TEST(CachedCall, AppendedRowsOfARingAreReadByAMaskThatHidesWhatItDropped) {
  mha::KvCache<Ring, float> cache({1, 2, 2}, Ring{.left = 2, .rows = 2, .first = 1});
  const SequenceId id = cache.add();
  const auto x = random_rows(9, 23);
  const Tensor<float, 3> q(1, 1, 2);
  for (int i = 0; i < 9; ++i) {
    auto step = cache.step(id, 1);
    step.append(0, mha::view_blhd(&x(i, 0), 1, 1, 1, 2), mha::view_blhd(&x(i, 2), 1, 1, 1, 2));
    const auto window = mha::SlidingWindow{.left = 2} || mha::FirstKeys{.count = 1};
    const auto read = [&](const auto& mask) {
      return message_of([&] { static_cast<void>(mha::attention(q, step.source(0), mask)); });
    };
    EXPECT_EQ(read(window), "");
    // Five positions stay: from the sixth on the causal mask shows one that is gone.
    EXPECT_EQ(read(mha::Causal{}), i < 5 ? ""
                                         : "attention: the mask may show positions 1 to " + std::to_string(i - 4) +
                                               ", which the Ring has dropped, to the queries from position " +
                                               std::to_string(i) +
                                               " on: use a mask that hides them, such as SlidingWindow or one of your "
                                               "own with a member tile, or a Ring with a larger left");
    const auto weights = [&] { static_cast<void>(mha::attention_weights(q, step.source(0), mha::Causal{})); };
    EXPECT_EQ(message_of(weights) == "", i < 5);
    step.commit();
  }
}

// Keys and values are made of the rows of the step alone, and read from what is stored.
TEST(CachedCall, CostAndExplainKnowTheStep) {
  const Layer layer = drawn(25);
  const auto x = random_rows(40, 24);
  auto cache = mha::make_cache<mha::bfloat16>(layer, Paged{.pages = 12, .length = 48, .page = 16}, {.sequences = 2});
  EXPECT_EQ(cache.position_bytes(), 2u * 2u * 8u);  // 2 heads of 4 + 4 numbers
  const SequenceId who[] = {cache.add(), cache.add()};
  static_cast<void>(layer.step(part(x, 0, 20), cache));  // ten rows for each
  const Index rows[] = {1, 17};
  {
    const auto step = cache.step(who, rows);
    const mha::Cost cost = layer.cost(step[0]), whole = layer.cost(1, 18, 18);
    EXPECT_EQ(cost.projection.flop, whole.projection.flop);
    EXPECT_EQ(cost.output.flop, whole.output.flop);
    EXPECT_EQ(cost.visible_pairs, 11 + (11 + 27) * 17 / 2);
    EXPECT_EQ(cost.score.flop, 2 * cost.visible_pairs * E);
    EXPECT_EQ(cost.score.bytes, 4 * 18 * E + 2 * (11 + 27) * 8);
    EXPECT_EQ(cost.value.bytes, 4 * 18 * E + 2 * (11 + 27) * 8);
    EXPECT_EQ(cost.cache_elements, (11 + 27) * 16);
    EXPECT_EQ(layer.cost(step[0], mha::SlidingWindow{.left = 3}).visible_pairs, 18 * 4);
    const std::string text = layer.explain(step[0]);
    for (const char* const fact :
         {"cache:       Paged, 12 pages of 16 positions, 9 free; bfloat16, 32 bytes a position and layer; sequences 2, "
          "layers 1, 6144 bytes in all\n",
          "kernel:      of 17 rows: Cpu", "kernel:      of 1 row: Cpu", "visible:     334 of 470 pairs of each head\n"})
      EXPECT_NE(text.find(fact), std::string::npos) << fact << " is not in\n" << text;
  }
  const Layer other({.d_model = E, .num_heads = 2});
  EXPECT_EQ(message_of([&] { static_cast<void>(other.cost(cache.step(who, rows)[0])); }),
            "layer: the layer has head size 8 but the cache has head size 4");
  // Of a ring, what it has dropped is not read.
  auto ring = mha::make_cache(layer, Ring{.left = 3, .first = 1});
  const SequenceId id = ring.add();
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(layer.cost(ring.step(id, 1)[0]).cache_elements, 16 * std::min(i + 1, 5));
    static_cast<void>(layer.step(part(x, i, i + 1), ring, mha::SlidingWindow{.left = 3}));
  }
}

TEST(CachedCall, CostTakesTheMasksOfAnEvenStep) {
  const Layer layer = drawn(26);
  const Tensor<float, 3> x(2, 3, E);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 2});
  const SequenceId who[] = {cache.add(), cache.add()};
  const Index lengths[] = {3, 2}, later[] = {4, 3}, rows[] = {1, 2};
  const mha::LeftPadding padding{mha::Borrowed<Index>(lengths, 2)}, uneven{mha::Borrowed<Index>(later, 2)};
  {
    auto step = cache.step(3);
    static_cast<void>(layer(x, step[0], padding));
    EXPECT_EQ(layer.cost(step[0], padding).visible_pairs, (1 + 2 + 3) + (0 + 1 + 2));
    step.commit();
  }
  EXPECT_NE(message_of([&] { static_cast<void>(layer.cost(cache.step(who, rows)[0], uneven)); }), "");
}

TEST(CachedCall, LengthsAreNoMoreThanTheKeysOfTheirSequence) {
  const Layer layer = drawn(27);
  const auto x = random_rows(8, 28);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 2});
  const SequenceId who[] = {cache.add(), cache.add()};
  const Index rows[] = {2, 6};
  const std::vector<Index> own{2, 6}, longer{3, 6};
  auto step = cache.step(who, rows);
  const std::string refused = "Padding: length 3 of sequence 0 is outside [0, 2], the number of keys";
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, step[0], mha::Padding{longer})); }), refused);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.explain(step[0], mha::Padding{longer})); }), refused);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, step[0], mha::Padding{own})); }), "");
}

TEST(CachedCall, EmptyPartsOfAStepAreFine) {
  const Layer layer = drawn(21);
  const auto x = random_rows(5, 22);
  const auto whole = layer(x);
  auto cache = mha::make_cache(layer, Contiguous{.length = 8}, {.sequences = 3});
  for (int i = 0; i < 3; ++i) cache.add();
  const Index rows[] = {0, 5, 0};
  auto step = cache.step(cache.ids(), rows);
  EXPECT_EQ(layer.explain(step[0]).find("of 0 rows"), std::string::npos) << "a kernel of no rows";
  const auto y = layer(x, step[0]);
  step.commit();
  EXPECT_EQ(furthest(y, whole), 0);
  const Index none[] = {0, 0, 0};
  auto empty = cache.step(cache.ids(), none);
  EXPECT_EQ(layer(Tensor<float, 2>(0, E), empty[0]).size(), 0u);
  empty.commit();
}

}  // namespace
