// SPDX-License-Identifier: Apache-2.0
// A ragged batch is its sequences: each has the bits it has alone.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "every_backend.hpp"
#include "law.hpp"
#include "scratch.hpp"

namespace {

using laws::at_every_isa;
using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sequences;
using laws::Sizes;
using mha::Ragged;
using Cpu = mha::CpuWith<mha::Serial>;

const Sequences self{{3, 0, 140, 1, 129, 17}};
const Sequences cross{{3, 5, 0, 70, 1, 2}, {140, 0, 9, 33, 131, 2}};

template <class T> Inputs<T> ragged_inputs(const Sequences& r, support::Random& random) {
  return Inputs<T>({.batch = 1,
                    .heads = 4,
                    .kv_heads = 2,
                    .queries = r.q_offsets.back(),
                    .keys = r.k_offsets.back(),
                    .head_dim = 12,
                    .value_dim = 9},
                   random);
}

/// Each sequence of the ragged call against a call of its own; policies_of(b) are the policies of sequence b alone.
template <class B, class T, class Alone, class... Policies>
void expect_each_alone(const Sequences& r, const Inputs<T>& in, const Ragged& ragged, const std::string& name,
                       Alone&& alone, const Policies&... policies) {
  laws::expect_rows_of_each(r, in, attend<B>(in, ragged, policies...), name, [&](Index b, const auto&... qkv) {
    return alone(b, [&](const auto&... own) { return attend<B>(qkv..., own...); });
  });
}
template <class B, class T, class... Policies>
void expect_each_alone(const Sequences& r, const Inputs<T>& in, const std::string& name, const Policies&... policies) {
  expect_each_alone<B>(
      r, in, r.ragged(), name, [&](Index, const auto& call) { return call(policies...); }, policies...);
}

template <class T> class RaggedBatch : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(RaggedBatch, Scalars, );

TYPED_TEST(RaggedBatch, EachSequenceHasTheBitsItHasAlone) {
  support::Random random("ragged");
  for (const Sequences* r : {&self, &cross}) {
    const auto in = ragged_inputs<TypeParam>(*r, random);
    const std::string which = r == &self ? "self" : "cross";
    at_every_isa([&] {
      expect_each_alone<Cpu>(*r, in, which + ", full");
      expect_each_alone<Cpu>(*r, in, which + ", causal", mha::Causal{});
      expect_each_alone<Cpu>(*r, in, which + ", window", mha::SlidingWindow{.left = 40, .right = 2});
      expect_each_alone<Cpu>(*r, in, which + ", functor and score", laws::Strided{}, mha::Alibi{});
      expect_each_alone<Cpu>(*r, in, which + ", sink", mha::Causal{}, mha::Sink({1, 0, -3, 5}));
    });
  }
}

TYPED_TEST(RaggedBatch, OneSetOfOffsetsServesQueriesAndKeys) {
  support::Random random("one set");
  const auto in = ragged_inputs<TypeParam>(self, random);
  laws::expect_same_bits(attend<Cpu>(in, Ragged{self.q_offsets}, mha::Causal{}),
                         attend<Cpu>(in, self.ragged(), mha::Causal{}), "offsets given once");
}

/// Ids of every sequence, in rows of the longest one's length.
std::vector<Index> document_ids(const Sequences& r, support::Random& random) {
  std::vector<Index> ids;
  for (Index b = 0, id = 0; b < r.batch(); ++b, id = 0)
    for (Index k = 0; k < r.longest(); ++k) ids.push_back(id += random.chance(0.1) ? 1 : 0);
  return ids;
}

template <class T> void expect_documents_alone(const Sequences& r, const char* name) {
  support::Random random("documents");
  const auto in = ragged_inputs<T>(r, random);
  const auto ids = document_ids(r, random);
  expect_each_alone<Cpu>(
      r, in, r.ragged(), name,
      [&](Index b, const auto& call) {
        const mha::Borrowed<Index> own(ids.data() + b * r.longest(), r.keys(b));
        return call(mha::Document(own));
      },
      mha::Document{ids});
}

TYPED_TEST(RaggedBatch, TakesADocumentRowForEachSequence) { expect_documents_alone<TypeParam>(self, "documents"); }

/// Late queries of each sequence only, as a chunk of a longer text has them.
const Sequences tails{{2, 6, 0, 1, 30}, {10, 6, 3, 9, 35}};

TYPED_TEST(RaggedBatch, TakesDocumentsForTheLastQueriesOfEachSequence) {
  expect_documents_alone<TypeParam>(tails, "documents of tails");
}

TYPED_TEST(RaggedBatch, TakesABlockMapForTheLastQueriesOfEachSequence) {
  support::Random random("blocks of tails");
  const auto in = ragged_inputs<TypeParam>(tails, random);
  std::vector<std::uint8_t> map(49);  // 7 blocks of 5 are 35, the longest sequence
  for (auto& bit : map) bit = random.chance(0.5) ? 1 : 0;
  expect_each_alone<Cpu>(tails, in, "block map",
                         mha::BlockSparseView{.block = 5, .query_blocks = 7, .key_blocks = 7, .map = map});
}

/// Where the queries of the tails stand: before the keys and among them, at their first and last, behind them.
const std::vector<Index> positions{-1, 0, 50, 7, 33};

/// f(name, mask, score), each of one type, so that a call is compiled once for all.
template <class F> void with_placed_policies(F&& f) {
  using laws::erased;
  using Score = laws::Score<float>;
  f("causal", erased<laws::Mask>(mha::Causal{}), erased<Score>(mha::SoftCap{.cap = 3}));
  f("window", erased<laws::Mask>(mha::SlidingWindow{.left = 5, .right = 2}), erased<Score>(mha::Alibi{}));
  f("ALiBi", erased<laws::Mask>(mha::Full{}), erased<Score>(mha::Alibi{}));
}

TEST(RaggedOrigin, IsOfEachSequence) {
  support::Random random("ragged origins");
  const auto in = ragged_inputs<float>(tails, random);
  const Ragged ragged = tails.ragged();
  const mha::Origin origins{positions};
  with_placed_policies([&](const char* name, const auto& mask, const auto& score) {
    const auto alone = [&](Index b, const auto& call) {
      return call(mask, score, mha::Origin{positions[static_cast<std::size_t>(b)]});
    };
    at_every_isa([&] { expect_each_alone<Cpu>(tails, in, ragged, name, alone, mask, score, origins); });
    const auto cpu = attend<Cpu>(in, ragged, mask, score, origins);
    const auto plain = attend<mha::Reference>(in, ragged, mask, score, origins);
    const auto eigen = attend<mha::EigenCpu>(in, ragged, mask, score, origins);
    EXPECT_LE(support::largest_difference(cpu.out, plain.out), 2e-5) << name;
    EXPECT_LE(support::largest_difference(eigen.out, plain.out), 2e-5) << name;
  });
}

TYPED_TEST(RaggedBatch, TakesLengthsForEachSequence) {
  support::Random random("lengths");
  const auto in = ragged_inputs<TypeParam>(self, random);
  const std::vector<Index> lengths{2, 0, 77, 0, 129, 5};
  const auto one_length = [&](Index b) { return mha::Borrowed<Index>(lengths.data() + b, 1); };
  expect_each_alone<Cpu>(
      self, in, self.ragged(), "prefix", [&](Index b, const auto& call) { return call(mha::Prefix{one_length(b)}); },
      mha::Prefix{lengths});
  expect_each_alone<Cpu>(
      self, in, self.ragged(), "padding", [&](Index b, const auto& call) { return call(mha::Padding{one_length(b)}); },
      mha::Padding{lengths});
}

TYPED_TEST(RaggedBatch, TakesTablesForEachSequence) {
  support::Random random("ragged tables");
  const auto in = ragged_inputs<TypeParam>(tails, random);
  mha::Tensor<bool, 4> visible(tails.batch(), 4, 30, 35);
  for (bool& bit : visible) bit = random.chance(0.6);
  mha::Tensor<TypeParam, 4> bias(tails.batch(), 1, 30, 35);
  random.fill(bias);
  const auto own = [&](Index b, auto view) {
    view.data += b * view.stride[0];
    view.extent[0] = 1;
    view.extent[2] = tails.queries(b);
    view.extent[3] = tails.keys(b);
    return view;
  };
  expect_each_alone<Cpu>(
      tails, in, tails.ragged(), "tables",
      [&](Index b, const auto& call) {
        return call(mha::Dense{own(b, visible.view())}, mha::AdditiveBias{own(b, bias.view())});
      },
      mha::Dense{visible}, mha::AdditiveBias{bias});
}

TYPED_TEST(RaggedBatch, IsTheReference) {
  support::Random random("ragged reference");
  for (const Sequences* r : {&self, &cross}) {
    const auto in = ragged_inputs<TypeParam>(*r, random);
    const auto cpu = attend<Cpu>(in, r->ragged(), mha::Causal{});
    const auto plain = attend<mha::Reference>(in, r->ragged(), mha::Causal{});
    expect_each_alone<mha::Reference>(*r, in, "reference", mha::Causal{});
    const double bound = sizeof(TypeParam) == 4 ? 2e-5 : 1e-13;
    EXPECT_LE(support::largest_difference(cpu.out, plain.out), bound);
    const auto eigen = attend<mha::EigenCpu>(in, r->ragged(), mha::Causal{});
    EXPECT_LE(support::largest_difference(eigen.out, plain.out), bound);
    EXPECT_LE(support::largest_difference(eigen.log_sum_exp, plain.log_sum_exp), bound);
  }
}

// Not through attend(), which gives every call an Origin.
TEST(RaggedOrigin, IfNotGivenPutsTheLastQueryAtTheLastKey) {
  support::Random random("ragged, no origin");
  const auto in = ragged_inputs<float>(cross, random);
  const auto out = mha::attention<Cpu>(in.q, in.k, in.v, cross.ragged(), mha::Causal{});
  const std::vector<Index> ends{137, -5, 9, -37, 130, 0};
  EXPECT_EQ(
      support::differing(mha::attention<Cpu>(in.q, in.k, in.v, cross.ragged(), mha::Causal{}, mha::Origin{ends}), out),
      0u);
}

TYPED_TEST(RaggedBatch, ThreadsChangeNoBits) {
  support::Random random("ragged threads");
  const auto in = ragged_inputs<TypeParam>(self, random);
  laws::expect_same_bits(attend<Cpu>(in, self.ragged(), mha::Causal{}),
                         laws::attend_on_new_threads(3, in, self.ragged(), mha::Causal{}), "three threads");
}

TEST(RaggedWeights, AreEachSequencesAndZeroBeyondIt) {
  support::Random random("ragged weights");
  const auto in = ragged_inputs<double>(cross, random);
  const auto many = mha::attention_weights<Cpu>(in.q, in.k, cross.ragged());
  ASSERT_EQ(many.extent(0), cross.batch());
  ASSERT_EQ(many.extent(2), 70);
  ASSERT_EQ(many.extent(3), 140);
  for (Index b = 0; b < cross.batch(); ++b) {
    const auto one = mha::attention_weights<Cpu>(laws::rows(in.q, cross.q_first(b), cross.queries(b)),
                                                 laws::rows(in.k, cross.k_first(b), cross.keys(b)));
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 70; ++i)
        for (Index k = 0; k < 140; ++k)
          ASSERT_EQ(many(b, h, i, k), i < cross.queries(b) && k < cross.keys(b) ? one(0, h, i, k) : 0);
  }
}

TEST(RaggedRows, MayComeWithoutABatchAxis) {
  support::Random random("ragged rank 3");
  const auto in = ragged_inputs<double>(self, random);
  const auto q = mha::view(in.q.data(), in.q.extent(1), 4, 12), k = mha::view(in.k.data(), in.k.extent(1), 2, 12);
  const auto v = mha::view(in.v.data(), in.v.extent(1), 2, 9);
  const auto out = mha::attention<Cpu>(q, k, v, Ragged{self.q_offsets});
  const auto whole = attend<Cpu>(in, Ragged{self.q_offsets});
  ASSERT_EQ(out.size(), whole.out.size());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), whole.out.begin()));
}

std::string refusal(const std::vector<Index>& q_offsets, const std::vector<Index>& k_offsets) {
  mha::Tensor<float, 4> q(1, 6, 2, 4), k(1, 6, 2, 4);
  return mha_test::message_of<mha::ShapeError>([&] {
    static_cast<void>(mha::attention<Cpu>(q, k, k, Ragged{q_offsets, k_offsets}));
  });
}

TEST(RaggedOffsets, AreChecked) {
  EXPECT_EQ(refusal({0, 2, 6}, {0, 6, 6}), "");
  EXPECT_EQ(refusal({1, 6}, {0, 6}), "attention: the first offset of q is 1, it must be 0");
  EXPECT_EQ(refusal({0, 4, 3, 6}, {0, 1, 2, 6}), "attention: the offsets of q decrease from 4 to 3 at sequence 1");
  EXPECT_EQ(refusal({0, 6}, {0, 5}), "attention: the last offset of k is 5 but there are 6 rows");
  EXPECT_EQ(refusal({0, 6}, {0, 3, 6}), "attention: Ragged has 1 query sequences but 2 key sequences");
  mha::Tensor<float, 4> batch(2, 3, 1, 4);
  const std::vector<Index> offsets{0, 3};
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { static_cast<void>(mha::attention<Cpu>(batch, batch, batch, Ragged{offsets})); }),
            "attention: a ragged batch has batch 2, expected 1: offsets tell its sequences apart");
}

// The layer. A single row goes another way through the dense products, so no sequence here has only one.

template <class T, class Layer> void expect_layer_rows_alone(const Layer& layer, const Sequences& r) {
  support::Random random("ragged layer");
  const Index E = layer.config().d_model;
  mha::Tensor<T, 2> x(r.q_offsets.back(), E), memory(r.k_offsets.back(), E);
  random.fill(x);
  random.fill(memory);
  const auto part = [&](const mha::Tensor<T, 2>& rows, Index first, Index count) {
    return mha::view(rows.data() + first * E, count, E);
  };
  const auto self_all = layer(x, Ragged{r.q_offsets});
  const auto cross_all = layer(x, memory, r.ragged());
  const auto reused_all = layer(x, layer.project_memory(memory, r.ragged()), r.ragged());
  const std::vector<Index> starts{-2, 3, 0, 41};
  const auto placed_all = layer(x, memory, r.ragged(), mha::Origin{starts});
  EXPECT_TRUE(std::equal(cross_all.begin(), cross_all.end(), reused_all.begin())) << "projected once";
  for (Index b = 0; b < r.batch(); ++b) {
    const auto own = part(x, r.q_first(b), r.queries(b)), keys = part(memory, r.k_first(b), r.keys(b));
    const auto self_one = layer(own), cross_one = layer(own, keys);
    const auto placed_one = layer(own, keys, mha::Origin{starts[static_cast<std::size_t>(b)]});
    const auto from = std::ptrdiff_t{r.q_first(b)} * E;
    EXPECT_TRUE(std::equal(self_one.begin(), self_one.end(), self_all.begin() + from)) << "self, sequence " << b;
    EXPECT_TRUE(std::equal(cross_one.begin(), cross_one.end(), cross_all.begin() + from)) << "cross, sequence " << b;
    EXPECT_TRUE(std::equal(placed_one.begin(), placed_one.end(), placed_all.begin() + from))
        << "at an origin, sequence " << b;
  }
}

const Sequences sequences{{5, 0, 30, 7}, {9, 6, 31, 40}};

TYPED_TEST(RaggedBatch, ALayersSequencesHaveTheBitsTheyHaveAlone) {
  if (mha::current_isa() == mha::IsaLevel::baseline) GTEST_SKIP() << "the level in use has no kernels of ours for AVX2";
  mha::MultiHeadAttention<TypeParam, Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>, mha::QkNorm> layer(
      {.d_model = 24, .num_heads = 4, .bias = true});
  layer.initialize(mha::XavierUniform{.seed = 4});
  expect_layer_rows_alone<TypeParam>(layer, sequences);
}

TEST(RaggedLayer, TurnsEverySequenceFromItsOwnStart) {
  mha::MultiHeadAttention<double, mha::Reference, mha::Rotary<mha::Interleaved>> layer({.d_model = 12, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 5});
  expect_layer_rows_alone<double>(layer, sequences);
}

}  // namespace
