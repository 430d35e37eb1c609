// SPDX-License-Identifier: Apache-2.0
// Policies by what they must equal: a sink is a key without a value, a gate a factor, reused keys the same keys.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <mha/systolic.hpp>

#include "law.hpp"
#include "scratch.hpp"

namespace {

using laws::at_every_isa;
using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;
using Cpu = mha::CpuWith<mha::Serial>;

constexpr Index heads = 4;
const Sizes sizes{.batch = 2, .heads = heads, .kv_heads = 2, .queries = 21, .keys = 140};
const std::vector<float> sink_logits{0.5f, -3, 6, 1};

/// The sink written out: a key after the last that everybody sees, with a logit of its own and the value 0.
struct ShowsSink {
  Index keys;
  bool operator()(Index, Index, Index, Index k) const { return k == keys; }
};
struct SinkLogit {
  Index keys;
  template <class T> T operator()(T s, Index, Index h, Index, Index k) const {
    return k == keys ? T(sink_logits[static_cast<std::size_t>(h)]) : s;
  }
};
template <class T> mha::Tensor<double, 4> with_zero_row(const mha::Tensor<T, 4>& from) {
  mha::Tensor<double, 4> to(from.extent(0), from.extent(1) + 1, from.extent(2), from.extent(3));
  for (Index b = 0; b < from.extent(0); ++b)
    for (Index l = 0; l < from.extent(1); ++l)
      for (Index h = 0; h < from.extent(2); ++h)
        for (Index d = 0; d < from.extent(3); ++d) to(b, l, h, d) = support::to_double(from(b, l, h, d));
  return to;
}
template <class T> mha::Tensor<double, 4> doubled(const mha::Tensor<T, 4>& from) {
  mha::Tensor<double, 4> to(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
  std::transform(from.begin(), from.end(), to.begin(), [](T x) { return support::to_double(x); });
  return to;
}

template <class B, class T, class M, class S, class... Rest>
void expect_sink_is_a_key(const Inputs<T>& in, double bound, const char* name, const M& mask, const S& score,
                          const Rest&... rest) {
  const mha::Origin origin{sizes.keys - sizes.queries};
  const auto with_sink = attend<B>(in, mask, score, rest..., mha::Sink(sink_logits));
  const auto without = attend<B>(in, mask, score, rest...);
  const auto key =
      attend<mha::Reference>(doubled(in.q), with_zero_row(in.k), with_zero_row(in.v),
                             mha::Or{mask, ShowsSink{sizes.keys}}, score, SinkLogit{sizes.keys}, rest..., origin);
  EXPECT_LE(support::largest_difference(with_sink.out, key.out), bound) << name;
  EXPECT_GT(support::largest_difference(with_sink.out, without.out), 1e-3) << name << ": the sink takes its share";
  EXPECT_EQ(support::differing(with_sink.log_sum_exp, without.log_sum_exp), 0u) << name << ": not part of it";
}

template <class B, class T> void expect_sink_is_a_key(double bound) {
  support::Random random("sink is a key");
  const Inputs<T> in(sizes, random);
  expect_sink_is_a_key<B>(in, bound, "full", mha::Full{}, mha::NoScore{});
  expect_sink_is_a_key<B>(in, bound, "causal", mha::Causal{}, mha::NoScore{});
  expect_sink_is_a_key<B>(in, bound, "functor, soft cap", laws::Strided{}, mha::SoftCap{.cap = 2});
  expect_sink_is_a_key<B>(in, bound, "large scale", mha::Full{}, mha::NoScore{}, mha::Scale{1.7});
}

TEST(SinkLaw, IsAKeyWithALogitOfItsOwnAndNoValue) {
  expect_sink_is_a_key<mha::Reference, double>(1e-13);
  expect_sink_is_a_key<mha::EigenCpu, double>(1e-13);
  expect_sink_is_a_key<mha::EigenCpu, float>(1e-5);
  at_every_isa([] {
    expect_sink_is_a_key<Cpu, double>(1e-13);
    expect_sink_is_a_key<Cpu, float>(1e-5);
  });
}

template <class B> void expect_weights_leave_the_sinks_share() {
  support::Random random("sink weights");
  const Inputs<double> in({.batch = 1, .heads = heads, .queries = 5, .keys = 9}, random);
  const auto plain = mha::attention_weights<B>(in.q, in.k, mha::Causal{});
  const auto taken = mha::attention_weights<B>(in.q, in.k, mha::Causal{}, mha::Sink(sink_logits));
  mha::Tensor<double, 3> lse(1, heads, 5);
  static_cast<void>(mha::attention<B>(in.q, in.k, in.v, mha::Causal{}, mha::LogSumExp(lse)));
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < 5; ++i) {
      const double sink = sink_logits[static_cast<std::size_t>(h)];
      const double left = 1 / (1 + std::exp(sink - lse(0, h, i)));
      for (Index k = 0; k < 9; ++k) EXPECT_NEAR(taken(0, h, i, k), plain(0, h, i, k) * left, 1e-14);
    }
}
TEST(SinkLaw, WeightsSumToWhatTheSinkLeaves) {
  expect_weights_leave_the_sinks_share<mha::Reference>();
  expect_weights_leave_the_sinks_share<mha::EigenCpu>();
  expect_weights_leave_the_sinks_share<Cpu>();
}

template <class B> void expect_sink_edges() {
  constexpr float infinity = std::numeric_limits<float>::infinity(), huge = std::numeric_limits<float>::max();
  support::Random random("sink edges");
  const Inputs<float> in(sizes, random);
  const auto plain = attend<B>(in, mha::Causal{});
  laws::expect_same_bits(attend<B>(in, mha::Causal{}, mha::Sink(std::vector<float>(heads, -infinity))), plain,
                         "a sink of -inf");
  laws::expect_same_bits(attend<B>(in, mha::Causal{}, mha::Sink(std::vector<float>(heads, -huge))), plain,
                         "a sink of the lowest number");
  const auto nothing_left = attend<B>(in, mha::Causal{}, mha::Sink(std::vector<float>(heads, huge)));
  for (const float x : nothing_left.out) ASSERT_EQ(x, 0);
  EXPECT_EQ(support::differing(nothing_left.log_sum_exp, plain.log_sum_exp), 0u);

  const auto hidden = attend<B>(in, !mha::Full{}, mha::Sink(sink_logits));
  for (const float x : hidden.out) ASSERT_EQ(x, 0) << "a fully hidden row";
  for (const float x : hidden.log_sum_exp) ASSERT_EQ(x, -infinity);
}
TEST(SinkLaw, HoldsAtTheEdges) {
  expect_sink_edges<mha::Reference>();
  expect_sink_edges<mha::EigenCpu>();
  at_every_isa([] { expect_sink_edges<Cpu>(); });
}

TEST(SinkLaw, ALayersSinkIsTheCallsSink) {
  using Plain = mha::MultiHeadAttention<double, Cpu, mha::NoOutput>;
  using Sinking = mha::MultiHeadAttention<double, Cpu, mha::Sink, mha::NoOutput>;
  const mha::Config config{.d_model = 8, .num_heads = 4};
  Plain plain(config);
  plain.initialize(mha::XavierUniform{.seed = 8});
  Sinking sinking(config, mha::Sink(sink_logits));
  sinking.borrow(plain.parameters());
  support::Random random("layer sink");
  mha::Tensor<double, 2> x(6, 8);
  random.fill(x);
  mha::Tensor<double, 3> lse(1, 4, 6);
  const auto y = plain(x, mha::LogSumExp(lse));
  const auto z = sinking(x);
  for (Index i = 0; i < 6; ++i)
    for (Index h = 0; h < 4; ++h) {
      const double left = 1 / (1 + std::exp(sink_logits[static_cast<std::size_t>(h)] - lse(0, h, i)));
      for (Index d = 0; d < 2; ++d) EXPECT_NEAR(z(i, h * 2 + d), y(i, h * 2 + d) * left, 1e-14);
    }
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] {
              Sinking(config, mha::Sink({1, 2, 3}));
            }),
            "Sink: 3 logits for 4 heads");
}

template <class B> void expect_merged_ranges_are_the_whole() {
  support::Random random("merge");
  const Inputs<double> in(sizes, random);
  const auto whole = attend<mha::Reference>(in, mha::Causal{}, mha::SoftCap{.cap = 3});
  // Keys [first, last) stand at positions from 0 in a call of their own, so the queries' origin moves with them.
  const auto part = [&](auto backend, Index first, Index last) {
    return attend<decltype(backend)>(in.q, laws::rows(in.k, first, last - first), laws::rows(in.v, first, last - first),
                                     mha::Causal{}, mha::SoftCap{.cap = 3},
                                     mha::Origin{sizes.keys - sizes.queries - first});
  };
  auto all = part(B{}, 50, 50);
  for (const auto& [first, last] : {std::pair{120, 130}, {0, 50}, {130, 140}, {50, 120}}) {
    const auto next = first == 50 ? part(mha::Reference{}, first, last) : part(B{}, first, last);
    mha::merge(all.out, all.log_sum_exp, next.out, next.log_sum_exp);
  }
  EXPECT_LE(support::largest_difference(all.out, whole.out), 1e-13);
  EXPECT_LE(support::largest_difference(all.log_sum_exp, whole.log_sum_exp), 1e-12);
}
TEST(MergeLaw, KeyRangesOfAnyBackendInAnyOrderAreTheWhole) {
  expect_merged_ranges_are_the_whole<mha::Reference>();
  expect_merged_ranges_are_the_whole<mha::EigenCpu>();
  at_every_isa([] { expect_merged_ranges_are_the_whole<Cpu>(); });
}

TEST(GatedHeadsLaw, GatesAreFactorsOfTheHeads) {
  const mha::Config config{.d_model = 12, .num_heads = 3};
  mha::MultiHeadAttention<double, Cpu, mha::GatedHeads, mha::NoOutput> gated(config);
  mha::MultiHeadAttention<double, Cpu, mha::NoOutput> plain(config);
  gated.initialize(mha::XavierUniform{.seed = 2});
  plain.initialize(mha::XavierUniform{.seed = 2});
  EXPECT_EQ(gated.parameter_count(), plain.parameter_count() + 3);
  support::Random random("gates");
  mha::Tensor<double, 2> x(5, 12);
  random.fill(x);
  const auto heads_of = plain(x);
  auto y = gated(x);
  EXPECT_TRUE(std::equal(y.begin(), y.end(), heads_of.begin())) << "gates are 1 at first";
  const double gates[3] = {0, 2, -0.5};
  gated.update([&](auto& p) { std::copy_n(gates, 3, p.gate.data); });
  y = gated(x);
  for (Index i = 0; i < 5; ++i)
    for (Index e = 0; e < 12; ++e) EXPECT_EQ(y(i, e), heads_of(i, e) * gates[e / 4]);
}

TEST(GatedHeadsLaw, AClosedGateIsAHeadWithoutOutputWeights) {
  const mha::Config config{.d_model = 12, .num_heads = 3, .bias = true};
  mha::MultiHeadAttention<double, Cpu, mha::GatedHeads> gated(config);
  mha::MultiHeadAttention<double, Cpu> pruned(config);
  gated.initialize(mha::XavierUniform{.seed = 2});
  pruned.initialize(mha::XavierUniform{.seed = 2});
  gated.update([](auto& p) { p.gate(1) = 0; });
  pruned.update([](auto& p) {
    for (Index row = 4; row < 8; ++row)
      for (Index e = 0; e < 12; ++e) p.output.weight(row, e) = 0;
  });
  support::Random random("closed gate");
  mha::Tensor<double, 2> x(5, 12);
  random.fill(x);
  EXPECT_LE(support::largest_difference(gated(x), pruned(x)), 1e-15);
}

/// Counts its dense products.
struct Counting : mha::Reference {
  static constexpr const char* name = "Counting";
  static inline int products = 0;
  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace& workspace) const {
    ++products;
    mha::Reference{}.gemm(call, workspace);
  }
};
static_assert(mha::Backend<Counting>);

TEST(ProjectedMemory, IsProjectedOnceAndReused) {
  mha::MultiHeadAttention<double, Counting, mha::GroupedQuery<2>, mha::QkNorm, mha::Rotary<>> cross(
      {.d_model = 12, .num_heads = 6, .head_dim = 4, .value_dim = 3, .kv_model = 10, .bias = true});
  cross.initialize(mha::XavierUniform{.seed = 3});
  support::Random random("memory");
  mha::Tensor<double, 3> x(2, 3, 12), memory(2, 7, 10);
  random.fill(x);
  random.fill(memory);
  Counting::products = 0;
  const auto direct = cross(x, memory);
  EXPECT_EQ(Counting::products, 4) << "query, key, value, output";
  Counting::products = 0;
  const auto kept = cross.project_memory(memory);
  EXPECT_EQ(Counting::products, 2) << "key, value";
  for (int call = 0; call < 3; ++call) {
    Counting::products = 0;
    const auto reused = cross(x, kept);
    EXPECT_EQ(Counting::products, 2) << "query, output";
    EXPECT_EQ(support::differing(reused, direct), 0u);
  }
  const std::vector<Index> lengths{7, 2};
  EXPECT_EQ(support::differing(cross(x, kept, mha::Padding{lengths}), cross(x, memory, mha::Padding{lengths})), 0u);
  EXPECT_EQ(support::differing(cross.attention_weights(x, kept), cross.attention_weights(x, memory)), 0u);
  EXPECT_EQ(support::differing(cross.mean_attention_weights(x, kept), cross.mean_attention_weights(x, memory)), 0u);
}

TEST(ProjectedMemory, OfAnotherLayerIsRefused) {
  using Layer = mha::MultiHeadAttention<float, Cpu, mha::GroupedQuery<mha::Dynamic>>;
  Layer layer({.d_model = 12, .num_heads = 6, .num_kv_heads = 3});
  layer.initialize(mha::XavierUniform{.seed = 3});
  const mha::Tensor<float, 3> x(2, 3, 12);
  const auto refusal = [&](const mha::KeyValues<float>& memory) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x, memory)); });
  };
  const auto keys_and_values = [](Index batch, Index length, Index kv_heads, Index d, Index dv) {
    return mha::KeyValues<float>{mha::Tensor<float, 4>(batch, length, kv_heads, d),
                                 mha::Tensor<float, 4>(batch, length, kv_heads, dv)};
  };
  EXPECT_EQ(refusal(keys_and_values(2, 5, 3, 2, 2)), "");
  EXPECT_EQ(refusal(keys_and_values(2, 5, 2, 2, 2)), "layer: key has 2 heads but the layer has 3");
  EXPECT_EQ(refusal(keys_and_values(2, 5, 3, 4, 2)), "layer: key has head size 4 but the layer has head size 2");
  EXPECT_EQ(refusal(keys_and_values(2, 5, 3, 2, 4)), "layer: value has head size 4 but the layer has head size 2");
  EXPECT_EQ(refusal(keys_and_values(3, 5, 3, 2, 2)), "layer: x has batch 2 but key has batch 3");
}

/// A memory of one sequence, projected in the call or before it, is that of every sequence of x.
template <class B, class T> void expect_shared_memory() {
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::QkNorm, mha::Rotary<>> cross(
      {.d_model = 24, .num_heads = 4, .kv_model = 10, .bias = true});
  cross.initialize(mha::XavierUniform{.seed = 3});
  support::Random random("shared memory");
  mha::Tensor<T, 3> x(3, 9, 24), memory(1, 40, 10), each(3, 40, 10);
  random.fill(x);
  random.fill(memory);
  for (Index b = 0; b < 3; ++b) std::copy(memory.begin(), memory.end(), &each(b, 0, 0));
  const std::vector<Index> lengths{40, 2, 17};
  const auto expected = cross(x, each, mha::Padding{lengths});
  EXPECT_EQ(support::differing(cross(x, memory, mha::Padding{lengths}), expected), 0u);
  EXPECT_EQ(support::differing(cross(x, mha::view(memory.data(), 40, 10), mha::Padding{lengths}), expected), 0u);
  const auto kept = cross.project_memory(memory);
  EXPECT_EQ(kept.key.extent(0), 1);
  EXPECT_EQ(support::differing(cross(x, kept, mha::Padding{lengths}), expected), 0u);
  EXPECT_EQ(support::differing(cross.attention_weights(x, kept), cross.attention_weights(x, each)), 0u);
  EXPECT_EQ(support::differing(cross.mean_attention_weights(x, memory), cross.mean_attention_weights(x, each)), 0u);
}

TEST(ProjectedMemory, OfOneSequenceIsSharedByABatch) {
  expect_shared_memory<mha::Reference, double>();
  expect_shared_memory<Cpu, float>();
  expect_shared_memory<Cpu, mha::bfloat16>();
  expect_shared_memory<mha::Systolic<>, mha::bfloat16>();
  expect_shared_memory<mha::EigenCpu, float>();
  // Gradients of it would be sums over the batch: a call on a tape is refused.
  mha::MultiHeadAttention<float, Cpu> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 3});
  const mha::Tensor<float, 3> x(2, 3, 8), memory(1, 5, 8);
  auto tape = layer.tape();
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x, memory, tape)); }),
            "layer: x has batch 2 but memory has batch 1");
}

TEST(ProjectedMemory, OfPackedRowsHasNoBatch) {
  mha::MultiHeadAttention<float, Cpu, mha::Rotary<>> layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 3});
  const mha::Tensor<float, 3> memory(2, 5, 8);
  const std::vector<Index> offsets{0, 2, 5};
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { static_cast<void>(layer.project_memory(memory, mha::Ragged{offsets})); }),
            "project_memory: a ragged batch has batch 2, expected 1: offsets tell its sequences apart");
}

TEST(SharedWeights, RunUnderAnotherMaskWithoutACopy) {
  const mha::Config config{.d_model = 12, .num_heads = 3, .bias = true};
  mha::MultiHeadAttention<double, Cpu> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 6});
  mha::MultiHeadAttention<double, Cpu, mha::SlidingWindow> windowed(config, mha::SlidingWindow{.left = 2});
  windowed.borrow(layer);
  const auto own = layer.parameters(), shared = windowed.parameters();
  EXPECT_EQ(shared.query.heads.data, own.query.heads.data);
  EXPECT_EQ(shared.key.heads.data, own.key.heads.data);
  EXPECT_EQ(shared.value.heads.data, own.value.heads.data);
  EXPECT_EQ(shared.output.weight.data, own.output.weight.data);
  EXPECT_EQ(shared.output.bias.data, own.output.bias.data);
  support::Random random("shared");
  mha::Tensor<double, 2> x(7, 12);
  random.fill(x);
  EXPECT_EQ(support::differing(windowed(x), layer(x, mha::SlidingWindow{.left = 2})), 0u);
  layer.update([](auto& p) { p.output.bias(0) += 1; });
  windowed.borrow(layer);
  EXPECT_EQ(support::differing(windowed(x), layer(x, mha::SlidingWindow{.left = 2})), 0u) << "borrowed again";
}

TEST(SharedWeights, RunOnAnotherBackendAndUnderAnotherProjection) {
  const mha::Config config{.d_model = 12, .num_heads = 4, .num_kv_heads = 2, .bias = true};
  using Heads = mha::GroupedQuery<mha::Dynamic>;
  mha::MultiHeadAttention<double, Cpu, Heads, mha::QkNorm> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 6});
  support::Random random("other machines");
  layer.update([&](auto& p) {
    const auto all = p.flat();
    random.fill(all);
  });
  mha::Tensor<double, 2> x(7, 12);
  random.fill(x);

  mha::MultiHeadAttention<double, mha::Reference, Heads, mha::QkNorm> plain(config);
  plain.borrow(layer);
  EXPECT_EQ(plain.parameters().query.heads.data, layer.parameters().query.heads.data);
  const auto expected = plain(x, mha::Causal{});
  EXPECT_LE(support::largest_difference(layer(x, mha::Causal{}), expected), 1e-12);

  mha::MultiHeadAttention<double, Cpu, mha::PerHeadProjection, mha::GroupedQuery<2>, mha::Causal, mha::QkNorm> other(
      config);
  other.initialize(mha::XavierUniform{.seed = 7});
  EXPECT_GT(support::largest_difference(other(x), expected), 1e-3);
  other.borrow(plain);
  EXPECT_LE(support::largest_difference(other(x), expected), 1e-12);
  const auto refusal = [&](auto&& to) { return mha_test::message_of<mha::ShapeError>([&] { to.borrow(layer); }); };
  EXPECT_EQ(refusal(mha::MultiHeadAttention<double, Cpu, Heads>(config)),
            "borrow: the query_norm has 3 elements, expected 0: name mha::QkNorm in the layer's type");
  EXPECT_EQ(refusal(mha::MultiHeadAttention<double, Cpu, mha::MultiHead, mha::QkNorm>(
                {.d_model = 12, .num_heads = 4, .bias = true})),
            "borrow: the key weights are (2, 12, 3), expected (4, 12, 3)");
  EXPECT_EQ(refusal(mha::MultiHeadAttention<double, Cpu, Heads, mha::QkNorm, mha::NoOutput>(config)),
            "borrow: the output matrix is (12, 12), expected (0, 0)");
}

TEST(SharedWeights, AreRefusedWhereThereAreNone) {
  const mha::Config config{.d_model = 8, .num_heads = 2};
  const mha::MultiHeadAttention<float, Cpu> empty(config);
  mha::MultiHeadAttention<float, Cpu> other(config);
  const mha::Tensor<float, 2> x(3, 8);
  const auto message = [](auto&& f) { return mha_test::message_of<mha::ShapeError>(f); };
  const std::string rest = ": expected 256 weights, got 0: call initialize, update or borrow first";
  const std::string wanted = "layer" + rest;
  EXPECT_EQ(message([&] { static_cast<void>(empty(x)); }), wanted);
  EXPECT_EQ(message([&] { static_cast<void>(empty(x, x)); }), wanted);
  EXPECT_EQ(message([&] { static_cast<void>(empty.attention_weights(x)); }), wanted);
  EXPECT_EQ(message([&] { static_cast<void>(empty.project_memory(x)); }), "project_memory" + rest);
  EXPECT_NE(message([&] { other.borrow(empty.parameters()); }), "");
  EXPECT_EQ(message([&] { other.borrow(empty); }),
            "borrow: expected 256 weights, got 0: call initialize, update or borrow on it first");
  EXPECT_EQ(message([&] { static_cast<void>(other(x)); }), wanted) << "a refused borrow changes nothing";
}

TEST(LayerPolicies, ANormWantsAnEpsThatIsNotNegative) {
  const auto refusal = [](double eps) {
    return mha_test::message_of<mha::ShapeError>([&] {
      mha::MultiHeadAttention<float, Cpu, mha::QkNorm>({.d_model = 8, .num_heads = 2}, mha::QkNorm{.eps = eps});
    });
  };
  EXPECT_EQ(refusal(0), "");
  EXPECT_EQ(refusal(-1), "QkNorm: eps is -1, it must be a finite number, 0 or above");
  EXPECT_NE(refusal(std::numeric_limits<double>::quiet_NaN()), "");
}

TEST(LayerPolicies, ALayerOwnsItsBlockMapAndItsBias) {
  mha::Tensor<double, 2> x(6, 8);
  support::Random random("owned");
  random.fill(x);
  const std::vector<std::uint8_t> map{1, 0, 1, 1};
  std::vector<float> table(8);
  random.fill(table);
  const auto make = [&] {
    auto layer = mha::make_attention<double, Cpu>(
        {.d_model = 8, .num_heads = 2}, mha::BlockSparse({.block = 3, .query_blocks = 2, .key_blocks = 2}, map),
        mha::RelativeBias(std::vector<float>(table), {.count = 4, .max_distance = 4}));
    layer.initialize(mha::XavierUniform{.seed = 9});
    return layer;
  };
  const auto layer = make();
  mha::MultiHeadAttention<double, mha::Reference> plain({.d_model = 8, .num_heads = 2});
  plain.borrow(layer.parameters());
  const auto expected = plain(x, mha::BlockSparseView{.block = 3, .query_blocks = 2, .key_blocks = 2, .map = map},
                              mha::RelativeBias(table, {.count = 4, .max_distance = 4}));
  EXPECT_LE(support::largest_difference(layer(x), expected), 1e-13);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { mha::MultiHeadAttention<double, Cpu, mha::Rotary<>>({.d_model = 6, .num_heads = 2}); }),
            "Rotary: 3 coordinates of 3 would turn, expected an even number");
}

// A part whose weight underflows is not an empty part: its NaN is a visible one.
TEST(Merge, KeepsAVisibleNanOfANegligiblePart) {
  mha::Tensor<float, 4> out(1, 1, 1, 1), other(1, 1, 1, 1);
  mha::Tensor<float, 3> lse(1, 1, 1), other_lse(1, 1, 1);
  out(0, 0, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  lse(0, 0, 0) = -200;
  other(0, 0, 0, 0) = 1;
  mha::merge(out, lse, other, other_lse);
  EXPECT_TRUE(std::isnan(out(0, 0, 0, 0)));
}

// Head biases with memory between them are no row.
TEST(SharedWeights, BiasesThatLieApartAreReadHeadByHead) {
  using Layer = mha::MultiHeadAttention<float, Cpu>;
  Layer owner({.d_model = 8, .num_heads = 2, .bias = true}), reader({.d_model = 8, .num_heads = 2, .bias = true});
  owner.update([](auto& p) {
    for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = std::sin(static_cast<float>(i));
  });
  std::vector<float> apart(16, std::numeric_limits<float>::quiet_NaN());
  auto weights = owner.parameters();
  for (Index h = 0; h < 2; ++h)
    for (Index d = 0; d < 4; ++d) apart[static_cast<std::size_t>(8 * h + d)] = weights.query.bias(h, d);
  weights.query.bias = {apart.data(), {2, 4}, {8, 1}};
  reader.borrow(weights);
  mha::Tensor<float, 3> x(1, 3, 8);
  for (float& e : x) e = 0.5f;
  EXPECT_LE(support::largest_difference(reader(x), owner(x)), 1e-6);
}

// One long and many short 16-bit sequences: widened rows are those there are.
TEST(RaggedBatch, OfHalvesEqualsItsSequencesAlone) {
  std::vector<Index> offsets{0, 40, 41, 41, 47};
  mha::Tensor<mha::bfloat16, 3> q(47, 4, 8), k(47, 2, 8), v(47, 2, 8);
  float at = 0;
  for (auto* t : {&q, &k, &v})
    for (mha::bfloat16& e : *t) e = mha::bfloat16(std::sin(at += 0.7f));
  const auto ragged = mha::attention<Cpu>(q, k, v, mha::Ragged{offsets}, mha::Causal{});
  for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
    const Index first = offsets[b], length = offsets[b + 1] - first;
    if (length == 0) continue;
    const auto alone =
        mha::attention<Cpu>(mha::view(&q(first, 0, 0), length, 4, 8), mha::view(&k(first, 0, 0), length, 2, 8),
                            mha::view(&v(first, 0, 0), length, 2, 8), mha::Causal{});
    for (Index i = 0; i < length; ++i)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 8; ++d) EXPECT_EQ(ragged(first + i, h, d).bits, alone(i, h, d).bits);
  }
}

}  // namespace
