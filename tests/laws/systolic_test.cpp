// SPDX-License-Identifier: Apache-2.0
// The laws of attention on every matrix unit of this machine: one row, one answer; hidden pairs; batches; threads.
#include <algorithm>
#include <limits>

#include <mha/systolic.hpp>

#include "every_backend.hpp"
#include "law.hpp"
#include "units.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;
using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;
using WithThreads = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, laws::NewThreads>;

class SystolicLaw : public unit::OnUnit {};
INSTANTIATE_TEST_SUITE_P(Units, SystolicLaw, testing::ValuesIn(mha::detail::systolic::all_units), unit::unit_name);

/// Keys whose length grows along the sequence, so that anchors move.
Inputs<float> growing(const Sizes& sizes, const char* name) {
  support::Random random(name);
  Inputs<float> in(sizes, random);
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index l = 0; l < sizes.keys; ++l)
      for (Index g = 0; g < sizes.kv_heads; ++g)
        for (Index d = 0; d < sizes.head_dim; ++d) in.k(b, l, g, d) *= 0.1f * static_cast<float>(l);
  return in;
}

template <class F> void with_policies(F&& f) {
  f("full", mha::Full{});
  f("causal", mha::Causal{});
  f("window", mha::SlidingWindow{.left = 50, .right = 3});
  f("functor", laws::Strided{});
  f("causal, soft cap, ALiBi", mha::Causal{}, mha::SoftCap{.cap = 4}, mha::Alibi{});
  f("dropout", mha::Causal{}, mha::Dropout{.p = 0.3f}, mha::DropoutSeed{support::seed()});
}

TEST_P(SystolicLaw, OneQueryEqualsItsRowAmongMany) {
  const Sizes sizes{.batch = 1, .queries = 330, .keys = 330, .head_dim = 13, .value_dim = 9};
  const Inputs<float> in = growing(sizes, "systolic, one query");
  with_policies([&](const char* name, const auto&... policies) {
    const auto many = attend<Systolic>(in, policies...);
    for (const Index i : {0, 1, 63, 64, 255, 256, 329}) {
      const auto one = attend<Systolic>(laws::rows(in.q, i, 1), in.k, in.v, policies..., mha::Origin{i});
      for (Index h = 0; h < sizes.heads; ++h)
        EXPECT_TRUE(same_row(one, 0, 0, many, 0, i, h)) << name << ", row " << i << ", head " << h;
    }
    const auto some = attend<Systolic>(laws::rows(in.q, 41, 77), in.k, in.v, policies..., mha::Origin{41});
    for (Index i = 0; i < 77; ++i) EXPECT_TRUE(same_row(some, 0, i, many, 0, 41 + i, 1)) << name << ", row " << i;
  });
}

/// Every row of 20 against itself alone; the keys make rows move their anchors, and not all in the same block.
template <class Array> void expect_rows_to_be_their_own() {
  using Backend = mha::Systolic<Array, mha::DefaultPrecision, mha::Serial>;
  const Sizes sizes{.batch = 1, .heads = 1, .kv_heads = 1, .queries = 20, .keys = 300, .head_dim = 70};
  Inputs<float> in = growing(sizes, "systolic, arrays");
  for (Index i = 0; i < 20; i += 2)
    for (Index d = 0; d < sizes.head_dim; ++d) in.q(0, i, 0, d) *= 1e-3f;
  const auto many = attend<Backend>(in);
  for (Index i = 0; i < 20; ++i)
    EXPECT_TRUE(same_row(attend<Backend>(laws::rows(in.q, i, 1), in.k, in.v), 0, 0, many, 0, i, 0))
        << "row " << i << ", array of depth " << Array::depth;
}

TEST(SystolicArrays, OneQueryEqualsItsRowAmongMany) {
  expect_rows_to_be_their_own<mha::SystolicArray<16, 16, 64>>();
  expect_rows_to_be_their_own<mha::SystolicArray<16, 16, 96>>();
  expect_rows_to_be_their_own<mha::TpuArray<128>>();
  expect_rows_to_be_their_own<mha::TpuArray<256>>();
}

TEST_P(SystolicLaw, KeepsWhatDropoutKeepsTells) {
  const Sizes sizes{.heads = 4, .kv_heads = 2, .queries = 70, .keys = 300, .head_dim = 16, .value_dim = 300};
  Inputs<float> in = growing(sizes, "systolic, dropout");
  std::fill(in.v.begin(), in.v.end(), 0.f);  // values are unit vectors: the output of a row is its weights
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index k = 0; k < sizes.keys; ++k)
      for (Index g = 0; g < sizes.kv_heads; ++g) in.v(b, k, g, k) = 1;
  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed(), 1};
  const auto all = attend<Systolic>(in, mha::Causal{}), some = attend<Systolic>(in, mha::Causal{}, dropout, seed);
  EXPECT_EQ(support::differing(all.log_sum_exp, some.log_sum_exp), 0u);
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index i = 0; i < sizes.queries; ++i)
      for (Index h = 0; h < sizes.heads; ++h)
        for (Index k = 0; k < sizes.keys; ++k) {
          const bool kept = mha::dropout_keeps(dropout, seed, sizes.heads, b, h, sizes.keys - sizes.queries + i, k);
          const float weight = all.out(b, i, h, k), expected = kept ? weight / 0.75f : 0;
          const float least = std::numeric_limits<float>::min();
          ASSERT_NEAR(some.out(b, i, h, k), expected, 1e-6f * weight + least) << "row " << i << ", key " << k;
        }
  expect_same_bits(attend<Systolic>(in, mha::Causal{}, dropout), all, "no seed");
}

/// The heads of a group share tiles where there are few queries; those of 330 have tiles of their own.
TEST_P(SystolicLaw, HeadsThatShareATileAreEachTheirOwn) {
  for (const Index heads : {6, 50}) {
    const Sizes sizes{.batch = 1,
                      .heads = heads,
                      .kv_heads = heads == 50 ? 1 : 2,
                      .queries = 330,
                      .keys = 330,
                      .head_dim = 13,
                      .value_dim = 70};
    Inputs<float> in = growing(sizes, "systolic, shared tiles");
    for (Index h = 0; h < heads; h += 2)  // their anchors stay where those of the other heads move
      for (Index i = 0; i < 330; ++i)
        for (Index d = 0; d < 13; ++d) in.q(0, i, h, d) *= 1e-2f;
    in.q(0, 40, 1, 3) = NAN;
    in.v(0, 20, 0, 5) = INFINITY;
    std::vector<float> sinks;
    for (Index h = 0; h < heads; ++h) sinks.push_back(0.5f * static_cast<float>(h) - 1.f);
    const mha::Sink sink(sinks);
    with_policies([&](const char* name, const auto&... policies) {
      const auto many = attend<Systolic>(in, policies..., sink);
      const auto weights = mha::attention_weights<Systolic>(in.q, in.k, policies...);
      for (const Index rows : {1, 2, 7, 17, 24}) {
        const auto q = laws::rows(in.q, 41 - rows, rows);
        const mha::Origin origin{41 - rows};
        const auto some = attend<Systolic>(q, in.k, in.v, policies..., sink, origin);
        const auto threads =
            attend<WithThreads>(q, in.k, in.v, policies..., sink, origin, WithThreads{laws::NewThreads{3}});
        const auto of_some = mha::attention_weights<Systolic>(q, in.k, policies..., origin);
        for (Index i = 0; i < rows; ++i)
          for (Index h = 0; h < heads; ++h) {
            const Index row = 41 - rows + i;
            EXPECT_TRUE(same_row(some, 0, i, many, 0, row, h)) << name << ", row " << row << ", head " << h;
            EXPECT_TRUE(same_row(threads, 0, i, many, 0, row, h)) << name << ", row " << row << ", head " << h;
            for (Index k = 0; k < 330; ++k)
              ASSERT_EQ(support::bits(of_some(0, h, i, k)), support::bits(weights(0, h, row, k)))
                  << name << ", row " << row << ", head " << h << ", key " << k;
          }
      }
    });
  }
}

TEST_P(SystolicLaw, OneStepEqualsTheLastRowOfThePrompt) {
  constexpr Index lengths[] = {1, 2, 33, 64, 65, 257, 300};
  laws::expect_steps_of_a_prompt<Systolic>(growing({.batch = 1, .queries = 300, .keys = 300}, "systolic, step"),
                                           lengths);
}

TEST_P(SystolicLaw, TinyOutputsDependOnNoOtherRow) {
  // Sums around the smallest normal number, which units flush to 0 with its sign, beside rows that move their anchors.
  const Sizes sizes{
      .batch = 1, .heads = 1, .kv_heads = 1, .queries = 150, .keys = 150, .head_dim = 16, .value_dim = 16};
  Inputs<float> in = growing(sizes, "systolic, tiny");
  for (Index i = 0; i < 150; i += 2)
    for (Index d = 0; d < 16; ++d) in.q(0, i, 0, d) *= 1e-3f;
  for (Index l = 0; l < 60; ++l)
    for (Index d = 0; d < 16; ++d) in.v(0, l, 0, d) *= 1.2e-38f;
  const auto many = attend<Systolic>(in, mha::Causal{});
  for (Index i = 0; i < 60; ++i)
    EXPECT_TRUE(same_row(
        attend<Systolic>(laws::rows(in.q, i, 1), laws::rows(in.k, 0, i + 1), laws::rows(in.v, 0, i + 1), mha::Causal{}),
        0, 0, many, 0, i, 0))
        << "row " << i;
  for (Index l = 60; l < 150; ++l)
    for (Index d = 0; d < 16; ++d) in.v(0, l, 0, d) = 0.f;
  const auto all = attend<Systolic>(in);
  for (Index i = 0; i < 150; ++i)
    EXPECT_TRUE(same_row(attend<Systolic>(laws::rows(in.q, i, 1), in.k, in.v), 0, 0, all, 0, i, 0)) << "row " << i;
}

TEST_P(SystolicLaw, CausalPrefixIgnoresTheFuture) {
  support::Random random("systolic, future");
  constexpr Index positions[] = {0, 31, 32, 63, 64, 127};
  laws::expect_no_future<Systolic, mha::bfloat16>({.queries = 140, .keys = 140}, random, positions);
}

TEST_P(SystolicLaw, BatchMatesAndGroupsOfTilesChangeNothing) {
  // Enough keys that tiles of queries go through them four at a time.
  const Sizes sizes{
      .batch = 2, .heads = 4, .kv_heads = 2, .queries = 150, .keys = 2100, .head_dim = 128, .value_dim = 130};
  const Inputs<float> in = growing(sizes, "systolic, mates");
  const auto both = attend<Systolic>(in, mha::Causal{});
  for (Index b = 0; b < 2; ++b) {
    const auto alone = attend<Systolic>(laws::rows(in.q, 0, 150, b, 1), laws::rows(in.k, 0, 2100, b, 1),
                                        laws::rows(in.v, 0, 2100, b, 1), mha::Causal{});
    for (Index i = 0; i < 150; ++i)
      for (Index h = 0; h < 4; ++h) EXPECT_TRUE(same_row(alone, 0, i, both, b, i, h)) << "row " << i;
  }
  const auto few = attend<Systolic>(laws::rows(in.q, 5, 20), in.k, in.v, mha::Causal{}, mha::Origin{2100 - 150 + 5});
  for (Index i = 0; i < 20; ++i) EXPECT_TRUE(same_row(few, 1, i, both, 1, 5 + i, 3)) << "row " << i;
}

TEST_P(SystolicLaw, RaggedEqualsEachSequenceAlone) {
  support::Random random("systolic, ragged");
  const Inputs<float> in({.batch = 1, .heads = 2, .kv_heads = 1, .queries = 400, .keys = 400}, random);
  laws::expect_causal_rows_of_each<Systolic>(laws::Sequences{{1, 0, 269, 130}}, in, {0, 7, -30, 85});
}

/// Tiles that a long sequence has and a short one has not: with long rows they wrote over what is packed.
TEST_P(SystolicLaw, AShortSequenceBesideALongOneHasNoMoreTiles) {
  support::Random random("systolic, short");
  const Inputs<float> in({.batch = 1, .heads = 2, .kv_heads = 1, .queries = 75, .keys = 75, .head_dim = 700}, random);
  laws::expect_causal_rows_of_each<Systolic>(laws::Sequences{{50, 10, 1, 14}}, in, {0, 0, 0, 0});
}

TEST_P(SystolicLaw, ThreadsChangeNoBits) {
  const Sizes sizes{
      .batch = 1, .heads = 4, .kv_heads = 2, .queries = 300, .keys = 300, .head_dim = 64, .value_dim = 64};
  const Inputs<float> in = growing(sizes, "systolic, threads");
  const auto serial = attend<Systolic>(in, mha::Causal{});
  laws::expect_same_bits(laws::attend_on_new_threads<WithThreads>(2, in, mha::Causal{}), serial, "2 threads");
  laws::expect_same_bits(laws::attend_on_new_threads<WithThreads>(5, in, mha::Causal{}), serial, "5 threads");
}

TEST_P(SystolicLaw, ValidNanStaysInItsRow) {
  support::Random random("systolic, NaN");
  laws::expect_nan_in_one_row<Systolic>(Inputs<float>({.batch = 1, .queries = 70, .keys = 200}, random), 33, 1);
}

}  // namespace
