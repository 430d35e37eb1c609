// SPDX-License-Identifier: Apache-2.0
// A backend whose memory the host cannot touch computes the same bits as one on the host: what the library does around
// the kernels reads and writes the backend's memory through the backend only.
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/kv_cache.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "far_backend.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha_test::message_of;
using support::Far;
using support::far_copy;
using support::FarTensor;
using T = float;

template <class Owner> void fill(Owner& x, support::Random& random) {
  for (auto& v : x) v = static_cast<T>(random.uniform(-1, 1));
}
template <int Rank, class... I> Tensor<T, Rank> drawn(support::Random& random, I... extents) {
  Tensor<T, Rank> x(extents...);
  fill(x, random);
  return x;
}

/// The same layer on both machines, of policies that have weights and data of their own.
template <class... Policies> struct Twins {
  mha::MultiHeadAttention<T, mha::Reference, Policies...> here;
  mha::MultiHeadAttention<T, Far, Policies...> there;

  template <class... Values>
  explicit Twins(const mha::Config& config, const Values&... values)
      : here(config, values...), there(config, values...) {
    const auto draw = [](auto& p) {
      mha::XavierUniform{.seed = 3}(p);
      support::Random random("weights of twins");
      for (T& x : p.flat()) x += static_cast<T>(random.uniform(-0.1, 0.1));
    };
    here.update(draw);
    there.update(draw);
  }
};

const mha::Config config{.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 5, .bias = true};
const std::vector<float> sink{0.5f, -1, 2, 0};
using Everything =
    Twins<mha::GroupedQuery<mha::Dynamic>, mha::CausalTopLeft, mha::QkNorm, mha::Rotary<>, mha::Sink, mha::GatedHeads>;

TEST(FarMemory, ALayerWithAllItsPoliciesHasTheBitsOfTheHost) {
  Everything twins(config, mha::Sink(sink));
  support::Random random("far layer");
  const auto x = drawn<3>(random, 2, 9, 24);
  Far::merged = 0;
  const auto y = twins.there(FarTensor<T, 3>(x));
  static_assert(std::is_same_v<decltype(y), const FarTensor<T, 3>>);
  EXPECT_EQ(support::differing(y.near(), twins.here(x)), 0u);
  EXPECT_EQ(Far::merged, 1) << "Q, K and V lie side by side in every row";
}

/// Policies that can be copied and not assigned.
struct Near {
  const Index reach;
  bool operator()(Index, Index, Index q, Index k) const { return q - k < reach; }
};
struct Sloped {
  const float slope;
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * float(mha::abs(q - k));
  }
};

TEST(FarMemory, PoliciesThatCannotBeAssignedHaveTheBitsOfTheHost) {
  static_assert(!std::is_copy_assignable_v<Near> && !std::is_copy_assignable_v<Sloped>);
  Twins<mha::GroupedQuery<mha::Dynamic>, Near, Sloped> twins(config, Near{4}, Sloped{0.25f});
  support::Random random("far policies");
  const auto x = drawn<3>(random, 2, 9, 24);
  EXPECT_EQ(support::differing(twins.there(FarTensor<T, 3>(x)).near(), twins.here(x)), 0u);
  const auto q = drawn<4>(random, 2, 9, 4, 6);
  const FarTensor<T, 4> far(q);
  EXPECT_EQ(support::differing(mha::attention<Far>(far, far, far, Near{4}, Sloped{0.25f}).near(),
                               mha::attention<mha::Reference>(q, q, q, Near{4}, Sloped{0.25f})),
            0u);
}

template <class Storage> void expect_steps(const Storage& storage) {
  Twins<mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow, mha::QkNorm, mha::Rotary<>, mha::Sink, mha::GatedHeads>
      twins(config, mha::SlidingWindow{.left = 6}, mha::Sink(sink));
  support::Random random("far steps");
  const mha::CacheSizes sizes{.layers = 1, .sequences = 3};
  auto here = mha::make_cache(twins.here, storage, sizes);
  auto there = mha::make_cache(twins.there, storage, sizes);
  static_assert(decltype(there)::memory == mha::Memory::device);
  for (int i = 0; i < 2; ++i) static_cast<void>(here.add()), static_cast<void>(there.add());
  const auto both = [&](const std::vector<Index>& rows) {
    Index all = 0;
    for (const Index n : rows) all += n;
    const auto x = drawn<2>(random, all, 24);
    auto step = here.step(here.ids(), rows);
    auto far_step = there.step(there.ids(), rows);
    const auto y = twins.here(x, step[0]);
    EXPECT_EQ(support::differing(twins.there(FarTensor<T, 2>(x), far_step[0]).near(), y), 0u);
    step.commit();
    far_step.commit();
  };
  both({4, 1});
  both({1, 1});
  static_cast<void>(here.fork(here.ids()[0])), static_cast<void>(there.fork(there.ids()[0]));
  both({1, 0, 3});
  both({2, 2, 2});
  {
    const auto drafts = drawn<2>(random, 6, 24);
    const std::vector<Index> positions{9, 8, 8, 3, 5, 5};
    auto step = here.step(here.ids(), {2, 3, 1});
    auto far_step = there.step(there.ids(), {2, 3, 1});
    const auto y = twins.here(drafts, step[0], mha::Positions{positions});
    EXPECT_EQ(
        support::differing(twins.there(FarTensor<T, 2>(drafts), far_step[0], mha::Positions{positions}).near(), y), 0u);
    step.commit({1, 2, 4});
    far_step.commit({1, 2, 4});
    for (std::size_t b = 0; b < 3; ++b) EXPECT_EQ(there.save(there.ids()[b]), here.save(here.ids()[b]));
  }
  const auto x = drawn<3>(random, 3, 2, 24);
  EXPECT_EQ(support::differing(twins.there.step(FarTensor<T, 3>(x), there).near(), twins.here.step(x, here)), 0u);
  EXPECT_EQ(there.save(there.ids()[2]), here.save(here.ids()[2]));
}
TEST(FarMemory, ACacheThereTakesNothingOfTheHost) {
  mha::KvCache<mha::Contiguous, T, Far> cache({2, 6, 5}, mha::Contiguous{.length = 4});
  cache.add();
  const Tensor<T, 3> key(1, 2, 6), value(1, 2, 5);
  auto step = cache.step(1);
  EXPECT_EQ(message_of<mha::ShapeError>([&] { step.append(0, key.view(), value.view()); }),
            "append: key is in host memory");
}
TEST(FarMemory, StepsOfACacheThereHaveTheBitsOfTheHost) {
  expect_steps(mha::Contiguous{.length = 16});
  expect_steps(mha::Ring{.left = 6, .rows = 4});
  expect_steps(mha::Paged{.pages = 6, .length = 32, .page = 16});
}

TEST(FarMemory, CrossAttentionReadsAMemoryOnceProjected) {
  Everything twins(config, mha::Sink(sink));
  support::Random random("far memory");
  const auto x = drawn<2>(random, 5, 24), memory = drawn<2>(random, 11, 24);
  const FarTensor<T, 2> far_x(x), far_memory(memory);
  Far::merged = 0;
  const auto y = twins.here(x, memory);
  EXPECT_EQ(support::differing(twins.there(far_x, far_memory).near(), y), 0u);
  EXPECT_EQ(Far::merged, 1) << "K and V";
  EXPECT_EQ(support::differing(twins.there(far_x, twins.there.project_memory(far_memory)).near(), y), 0u);
}

template <class Storage> void expect_memories(const Storage& storage) {
  Everything twins(config, mha::Sink(sink));
  support::Random random("far memories");
  const auto x = drawn<2>(random, 5, 24), memory = drawn<2>(random, 13, 24);
  const auto more = drawn<3>(random, 2, 3, 24);
  const FarTensor<T, 2> far_x(x), far_memory(memory);
  const FarTensor<T, 3> far_more(more);
  const std::vector<Index> offsets{0, 2, 2, 5};
  auto here = mha::make_cache(twins.here, storage, {.sequences = 3});
  auto there = mha::make_cache(twins.there, storage, {.sequences = 3});
  const auto attend = [&](const auto& layer, auto& cache, const auto& queries, const auto& rows, const auto& others) {
    const mha::SequenceId a = cache.add(), b = cache.add();
    const auto write = [&](const auto& piece, const mha::detail::RowCounts& lengths) {
      auto step = cache.step({a, b}, lengths);
      layer.project_memory(piece, step[0]);
      step.commit();
    };
    write(rows, {9, 4});
    write(others, 3);
    return layer(queries, cache.step({b, a, b}, 0).source(0), mha::Ragged{offsets});
  };
  const auto y = attend(twins.here, here, x, memory, more);
  EXPECT_EQ(support::differing(attend(twins.there, there, far_x, far_memory, far_more).near(), y), 0u);
  for (std::size_t b = 0; b < 2; ++b) EXPECT_EQ(there.save(there.ids()[b]), here.save(here.ids()[b]));
}
TEST(FarMemory, MemoriesInACacheThereHaveTheBitsOfTheHost) {
  expect_memories(mha::Contiguous{.length = 16});
  expect_memories(mha::Paged{.pages = 6, .length = 32, .page = 16});
}

TEST(FarMemory, RaggedBatchesBringTheirOffsetsAndOrigins) {
  Everything twins(config, mha::Sink(sink));
  support::Random random("far ragged");
  const std::vector<Index> q{0, 3, 3, 8, 9}, k{0, 5, 6, 13, 15};
  const auto x = drawn<2>(random, 9, 24), memory = drawn<2>(random, 15, 24);
  const FarTensor<T, 2> far_x(x), far_memory(memory);
  EXPECT_EQ(support::differing(twins.there(far_x, mha::Ragged{q}).near(), twins.here(x, mha::Ragged{q})), 0u);
  const mha::Ragged both{q, k};
  const auto y = twins.here(x, memory, both);
  Far::staged = 0;
  EXPECT_EQ(support::differing(twins.there(far_x, far_memory, both).near(), y), 0u);
  EXPECT_EQ(Far::staged, 3) << "two rows of offsets and the origins, once for the whole call";
  const auto made = twins.there.project_memory(far_memory, mha::Ragged{k});
  EXPECT_EQ(support::differing(twins.there(far_x, made, both).near(), y), 0u);
}

TEST(FarMemory, RowsOfAnyStridesAndResultsOfTheCallers) {
  Twins<mha::NoOutput> twins(mha::Config{.d_model = 12, .num_heads = 3});
  support::Random random("far strides");
  const auto x = drawn<3>(random, 4, 3, 12);
  const FarTensor<T, 3> far_x(x), far_y(4, 3, 12);
  const auto swapped = [](auto v) { return decltype(v){v.data, {3, 4, 12}, {12, 36, 1}}; };  // (L, B, E)
  Tensor<T, 3> y(4, 3, 12);
  twins.here(swapped(x.view()), mha::into(swapped(y.view())));
  support::FarWorkspace workspace;
  twins.there(swapped(far_x.view()), mha::into(swapped(far_y.view())), workspace);
  EXPECT_EQ(support::differing(far_y.near(), y), 0u);
}

TEST(FarMemory, AttentionPacksScatteredKeysAndStagesWhatPoliciesHold) {
  support::Random random("far attention");
  const auto q = drawn<3>(random, 9, 2, 4), k = drawn<3>(random, 9, 4, 2), v = drawn<3>(random, 9, 4, 2);
  const auto across = [](auto x) { return decltype(x){x.data, {9, 2, 4}, {8, 1, 2}}; };  // scattered along D
  const std::vector<Index> offsets{0, 2, 9};
  Tensor<bool, 2> visible(7, 7);
  for (bool& b : visible) b = random.uniform(0, 1) < 0.7;
  const auto bias = drawn<2>(random, 7, 7);
  Tensor<T, 2> lse(2, 9);
  const auto here = mha::attention<mha::Reference>(q, across(k.view()), across(v.view()), mha::Ragged{offsets},
                                                   mha::Dense(visible), mha::AdditiveBias(bias), mha::LogSumExp(lse));
  const FarTensor<T, 3> far_q(q), far_k(k), far_v(v);
  FarTensor<T, 2> far_lse(2, 9);
  const auto there =
      mha::attention<Far>(far_q, across(far_k.view()), across(far_v.view()), mha::Ragged{offsets},
                          far_copy(mha::Dense(visible)), far_copy(mha::AdditiveBias(bias)), mha::LogSumExp(far_lse));
  EXPECT_EQ(support::differing(there.near(), here), 0u);
  EXPECT_EQ(support::differing(far_lse.near(), lse), 0u);
}

/// The softmax made there is that made here, but for the order in which one exponential is rounded.
template <int Rank> void expect_weights(const FarTensor<T, Rank>& there, const Tensor<T, Rank>& here) {
  const Tensor<T, Rank> found = there.near();
  ASSERT_EQ(found.size(), here.size());
  for (std::size_t i = 0; i < here.size(); ++i) ASSERT_NEAR(found.data()[i], here.data()[i], 1e-6) << "element " << i;
}

TEST(FarMemory, WeightsAreMadeThere) {
  support::Random random("far weights");
  const auto q = drawn<3>(random, 9, 2, 4), k = drawn<3>(random, 9, 4, 2);
  const auto across = [](auto x) { return decltype(x){x.data, {9, 2, 4}, {8, 1, 2}}; };  // scattered along D
  const std::vector<Index> offsets{0, 2, 9};
  Tensor<bool, 2> visible(7, 7);
  for (bool& b : visible) b = random.uniform(0, 1) < 0.7;
  const FarTensor<T, 3> far_q(q), far_k(k);
  expect_weights(mha::attention_weights<Far>(far_q, across(far_k.view()), mha::Ragged{offsets},
                                             far_copy(mha::Dense(visible)), mha::SoftCap{.cap = 2}),
                 mha::attention_weights<mha::Reference>(q, across(k.view()), mha::Ragged{offsets}, mha::Dense(visible),
                                                        mha::SoftCap{.cap = 2}));

  Everything twins(config, mha::Sink(sink));
  const auto x = drawn<3>(random, 2, 9, 24), memory = drawn<3>(random, 2, 4, 24);
  const FarTensor<T, 3> far_x(x), far_memory(memory);
  support::FarWorkspace workspace;
  expect_weights(twins.there.attention_weights(far_x, workspace), twins.here.attention_weights(x));
  expect_weights(twins.there.mean_attention_weights(far_x, far_memory, workspace),
                 twins.here.mean_attention_weights(x, memory));
  const auto rows = drawn<2>(random, 9, 24);
  expect_weights(twins.there.attention_weights(FarTensor<T, 2>(rows), mha::Ragged{offsets}),
                 twins.here.attention_weights(rows, mha::Ragged{offsets}));
}

TEST(FarMemory, BareViewsGiveResultsOfTheBackend) {
  support::Random random("far views");
  const auto q = drawn<2>(random, 5, 4);
  const FarTensor<T, 2> far(q);
  const auto y = mha::attention<Far>(far.view(), far.view(), far.view());
  static_assert(std::is_same_v<decltype(y), const FarTensor<T, 2>>);
  EXPECT_EQ(support::differing(y.near(), mha::attention<mha::Reference>(q, q, q)), 0u);
}

TEST(FarMemory, WhatLiesOnTheHostIsRefusedByName) {
  Tensor<T, 3> near(1, 3, 8);
  const FarTensor<T, 3> far(near);
  EXPECT_EQ(
      message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention<Far>(far.view(), near.view(), far.view())); }),
      "attention: k is in host memory");
  EXPECT_EQ(
      message_of<mha::ShapeError>([&] { static_cast<void>(mha::attention_weights<Far>(far.view(), near.view())); }),
      "attention_weights: k is in host memory");
  Twins<mha::Causal> twins(mha::Config{.d_model = 8, .num_heads = 2});
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(twins.there(near.view())); }),
            "layer: x is in host memory");
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(twins.there.attention_weights(near.view())); }),
            "layer: x is in host memory");
  EXPECT_EQ(message_of<mha::ShapeError>([&] { twins.there(far, mha::into(near)); }),
            "layer: the result is in host memory");
  const std::vector<Index> lengths{2};
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(twins.there(far, mha::Padding{lengths})); }),
            "layer: a policy borrows host memory, but the backend computes on a device: give mha::on_device(policy), "
            "made once");
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(twins.here(near, far_copy(mha::Padding{lengths}))); }),
            "layer: a policy borrows device memory, but the backend computes on the host");
  EXPECT_EQ(message_of<mha::ShapeError>(
                [&] { static_cast<void>(mha::attention<Far>(far, far, far, mha::Sink(std::vector<float>(3, 0.f)))); }),
            "attention: the Sink's logits are in host memory, but the backend computes on a device: give "
            "mha::on_device(sink)");
}

TEST(FarMemory, ALayerWhoseUpdateFailedHasNoWeightsThere) {
  Twins<mha::Causal> twins(mha::Config{.d_model = 8, .num_heads = 2});
  EXPECT_THROW(twins.there.update([](auto&) { throw 1; }), int);
  const FarTensor<T, 3> x{Tensor<T, 3>(1, 3, 8)};
  EXPECT_EQ(message_of<mha::ShapeError>([&] { static_cast<void>(twins.there(x)); }),
            "layer: the weights are not in the backend's memory, because the last update() or borrow() threw: call it "
            "again");
}

TEST(FarMemory, CostIsCountedWithTheHostsPolicies) {
  const std::vector<std::uint8_t> map{1, 0, 1, 1};
  support::Random random("far blocks");
  const auto x = drawn<3>(random, 1, 4, 8);
  Twins<mha::BlockSparse> twins(mha::Config{.d_model = 8, .num_heads = 2},
                                mha::BlockSparse({.block = 2, .query_blocks = 2, .key_blocks = 2}, map));
  EXPECT_EQ(support::differing(twins.there(FarTensor<T, 3>(x)).near(), twins.here(x)), 0u);
  EXPECT_EQ(twins.there.cost(1, 4, 4).visible_pairs, 12);
}

}  // namespace
