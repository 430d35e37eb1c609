// SPDX-License-Identifier: Apache-2.0
// Rows of more keys than a chunk on every matrix unit: the same bits for any threads, mates and storage of the keys.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <mha/systolic.hpp>

#include "cache_law.hpp"
#include "every_backend.hpp"
#include "law.hpp"
#include "units.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;
using mha::bfloat16;
using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;
using WithThreads = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, laws::NewThreads>;
constexpr Index chunk = mha::detail::simd::key_chunk;
constexpr float infinity = std::numeric_limits<float>::infinity();

class SystolicChunks : public unit::OnUnit {};
INSTANTIATE_TEST_SUITE_P(Units, SystolicChunks, testing::ValuesIn(mha::detail::systolic::all_units), unit::unit_name);

/// Even queries see the even chunks and odd ones the odd, but every seventh sees nothing.
struct EveryOtherChunk {
  bool operator()(Index, Index, Index q, Index k) const { return q % 7 != 3 && (k / chunk + q) % 2 == 0; }
};

/// Only the second chunk.
struct SecondChunk {
  bool operator()(Index, Index, Index, Index k) const { return k / chunk == 1; }
};

template <class F> void with_policies(F&& f) {
  f("full", mha::Full{});
  f("causal", mha::Causal{});
  f("window", mha::SlidingWindow{.left = chunk + 50, .right = 3});
  f("every other chunk", EveryOtherChunk{});
  f("the second chunk", SecondChunk{});
  f("nothing", mha::mask([](Index, Index, Index, Index) { return false; }));
  f("causal, soft cap, ALiBi", mha::Causal{}, mha::SoftCap{.cap = 4}, mha::Alibi{});
  f("dropout", mha::Causal{}, mha::Dropout{.p = 0.3f}, mha::DropoutSeed{support::seed()});
}

/// Keys that grow from chunk to chunk, so that levels differ, up to those that are too coarse for whole steps.
template <class T> Inputs<T> growing(const Sizes& sizes, const char* name, float by) {
  support::Random random(name);
  Inputs<T> in(sizes, random);
  for (Index b = 0; b < sizes.batch; ++b)
    for (Index l = 0; l < sizes.keys; ++l)
      for (Index g = 0; g < sizes.kv_heads; ++g)
        for (Index d = 0; d < sizes.head_dim; ++d)
          in.k(b, l, g, d) = T(static_cast<float>(in.k(b, l, g, d)) * (1 + by * static_cast<float>(l / 1000)));
  return in;
}

/// One of a few rows against itself alone, among many rows and on threads.
template <class T> void expect_rows_to_be_their_own(const Sizes& sizes, float by) {
  Inputs<T> in = growing<T>(sizes, "chunks, rows", by);
  for (Index h = 0; h < sizes.heads; h += 2)  // the levels of these are those of other blocks
    for (Index i = 0; i < sizes.queries; ++i)
      for (Index d = 0; d < sizes.head_dim; ++d) in.q(0, i, h, d) = T(static_cast<float>(in.q(0, i, h, d)) * 1e-2f);
  std::vector<float> sinks;
  for (Index h = 0; h < sizes.heads; ++h) sinks.push_back(h == 1 ? -infinity : 0.5f * static_cast<float>(h) - 1.f);
  const mha::Sink sink(sinks);
  const Index first = sizes.queries / 2, rows = 3, position = sizes.keys - sizes.queries + first;
  const auto few = laws::rows(in.q, first, rows);
  const mha::Origin origin{position};
  with_policies([&](const char* name, const auto&... policies) {
    const auto many = attend<Systolic>(in, policies..., sink);
    const auto serial = attend<Systolic>(few, in.k, in.v, policies..., sink, origin);
    for (const Index threads : {2, 3, 5})
      laws::expect_same_bits(
          attend<WithThreads>(few, in.k, in.v, policies..., sink, origin, WithThreads{laws::NewThreads{threads}}),
          serial, std::string(name) + ", " + std::to_string(threads) + " threads");
    const auto one = attend<WithThreads>(laws::rows(in.q, first + 1, 1), in.k, in.v, policies..., sink,
                                         mha::Origin{position + 1}, WithThreads{laws::NewThreads{4}});
    for (Index h = 0; h < sizes.heads; ++h) {
      for (Index i = 0; i < rows; ++i)
        EXPECT_TRUE(same_row(serial, 0, i, many, 0, first + i, h)) << name << ", row " << i << ", head " << h;
      EXPECT_TRUE(same_row(one, 0, 0, many, 0, first + 1, h)) << name << ", one row, head " << h;
    }
  });
}

TEST_P(SystolicChunks, ARowDependsOnNothingElse) {
  expect_rows_to_be_their_own<float>(
      {.batch = 1, .heads = 6, .kv_heads = 1, .queries = 90, .keys = 2 * chunk + 809, .head_dim = 70, .value_dim = 33},
      0.2f);
  expect_rows_to_be_their_own<bfloat16>(
      {.batch = 1, .heads = 4, .kv_heads = 2, .queries = 40, .keys = chunk + 1, .head_dim = 64, .value_dim = 80}, 0.f);
  expect_rows_to_be_their_own<float>(
      {.batch = 1, .heads = 5, .kv_heads = 1, .queries = 10, .keys = 2 * chunk, .head_dim = 80, .value_dim = 96}, 3e3f);
}

TEST_P(SystolicChunks, OneHead) {
  const Sizes sizes{
      .batch = 1, .heads = 1, .kv_heads = 1, .queries = 1, .keys = 5 * chunk - 3, .head_dim = 200, .value_dim = 130};
  const auto in = growing<mha::half>(sizes, "chunks, one head", 0.01f);
  const auto serial = attend<Systolic>(in);
  for (const Index threads : {2, 3, 5})
    laws::expect_same_bits(laws::attend_on_new_threads<WithThreads>(threads, in), serial, "threads");
}

TEST_P(SystolicChunks, RaggedEqualsEachSequenceAlone) {
  support::Random random("chunks, ragged");
  const laws::Sequences r{{2, 0, 1, 8}, {chunk + 7, 0, 33, 2 * chunk + 59}};
  const Inputs<float> in(
      {.batch = 1, .heads = 4, .kv_heads = 1, .queries = 11, .keys = 3 * chunk + 99, .head_dim = 72, .value_dim = 65},
      random);
  const auto together = attend<WithThreads>(in, mha::Causal{}, r.ragged(), WithThreads{laws::NewThreads{3}});
  laws::expect_rows_of_each(r, in, together, "on threads",
                            [](Index, const auto&... qkv) { return attend<Systolic>(qkv..., mha::Causal{}); });
}

TEST_P(SystolicChunks, LongSequencesAmongManyEqualEachAlone) {
  support::Random random("chunks, uneven");
  std::vector<Index> queries, keys;
  for (Index b = 0; b < 16; ++b) {
    queries.push_back(b == 5 ? 40 : b == 15 ? 0 : 1);
    keys.push_back(b == 5 ? 3 * chunk + 99 : b == 9 ? 2 * chunk + 1 : b == 11 ? 0 : 30 + b);
  }
  const laws::Sequences r{queries, keys};
  const Inputs<float> in({.batch = 1,
                          .heads = 4,
                          .kv_heads = 1,
                          .queries = 54,
                          .keys = r.k_offsets.back(),
                          .head_dim = 72,
                          .value_dim = 65},
                         random);
  for (const Index threads : {2, 3, 5}) {
    const auto together = attend<WithThreads>(in, mha::Causal{}, r.ragged(), WithThreads{laws::NewThreads{threads}});
    laws::expect_rows_of_each(r, in, together, std::to_string(threads) + " threads",
                              [](Index, const auto&... qkv) { return attend<Systolic>(qkv..., mha::Causal{}); });
  }
}

/// A step through a cache on threads against rows in plain memory on one; bfloat16 has its values in tiles.
template <class T, class Storage, class... Policies>
void expect_steps_of_a_cache(const Storage& storage, const char* name, const Policies&... policies) {
  constexpr Index heads = 4, dim = 72, keys = 2 * chunk + 1;
  const mha::MultiHeadAttention<T, WithThreads, mha::GroupedQuery<1>, mha::Causal> layer(
      {.d_model = 64, .num_heads = heads, .head_dim = dim}, WithThreads{laws::NewThreads{3}});
  support::Random random("chunks, cache");
  const Inputs<T> in(
      {.batch = 1, .heads = heads, .kv_heads = 1, .queries = 3, .keys = keys, .head_dim = dim, .value_dim = dim},
      random);
  auto cache = mha::make_cache(layer, storage);
  laws::cached::poison(cache);
  const mha::SequenceId id = cache.add();
  for (Index at = 0, n = 0; at < keys; at += n) {
    const Index boundary = chunk - 3 - at % chunk;  // two rows before it, then two around it
    n = std::min(keys - at, boundary > 0 ? std::min<Index>(500, boundary) : 2);
    auto step = cache.step(id, n);
    mha::Tensor<T, 3> k(n, 1, dim), v(n, 1, dim);
    for (Index i = 0; i < n; ++i)
      for (Index d = 0; d < dim; ++d) {
        k(i, 0, d) = in.k(0, at + i, 0, d);
        v(i, 0, d) = in.v(0, at + i, 0, d);
      }
    step.append(0, k, v);
    const Index end = at + n;
    if (n <= 2) {
      mha::Tensor<T, 4> out(1, n, heads, dim);
      support::poison_all(out);
      const auto q = laws::rows(in.q, 0, n);
      mha::attention_into<WithThreads>(out, q, step.source(0), policies..., WithThreads{laws::NewThreads{3}});
      const auto want = attend<Systolic>(q, laws::rows(in.k, 0, end), laws::rows(in.v, 0, end), policies...);
      EXPECT_EQ(support::differing(out, want.out), 0u) << name << " after " << end << " keys";
    }
    step.commit();
  }
}

TEST_P(SystolicChunks, EveryStorageOfACache) {
  const mha::SlidingWindow window{.left = chunk + 100, .right = 0};
  expect_steps_of_a_cache<bfloat16>(mha::Contiguous{.length = 3 * chunk}, "in tiles", mha::Causal{});
  expect_steps_of_a_cache<float>(mha::Contiguous{.length = 3 * chunk}, "in rows", mha::Causal{});
  expect_steps_of_a_cache<bfloat16>(mha::Paged{.pages = 3 * chunk / 64, .length = 3 * chunk}, "paged", mha::Causal{});
  expect_steps_of_a_cache<bfloat16>(mha::Paged{.pages = 3 * chunk / 32, .length = 3 * chunk, .page = 32}, "short pages",
                                    mha::Causal{});
  expect_steps_of_a_cache<bfloat16>(mha::Ring{.left = chunk + 100, .rows = 500}, "ring", window);
}

TEST_P(SystolicChunks, NonFiniteNumbersStayWithThoseWhoSeeThem) {
  support::Random random("chunks, not finite");
  const Sizes sizes{
      .batch = 1, .heads = 4, .kv_heads = 1, .queries = 6, .keys = 2 * chunk + 4, .head_dim = 64, .value_dim = 64};
  const Inputs<float> clean(sizes, random);
  Inputs<float> in = clean;
  in.q(0, 2, 1, 5) = NAN;
  in.v(0, sizes.keys - 2, 0, 7) = infinity;  // of the last two rows
  const auto want = attend<Systolic>(clean, mha::Causal{});
  for (const Index threads : {1, 3}) {
    const auto got = laws::attend_on_new_threads<WithThreads>(threads, in, mha::Causal{});
    for (Index i = 0; i < 6; ++i)
      for (Index h = 0; h < 4; ++h) {
        if (i < 4 && !(i == 2 && h == 1)) {
          EXPECT_TRUE(same_row(got, 0, i, want, 0, i, h)) << i << ", " << h;
        }
        for (Index d = 0; d < 64; ++d)
          if (i == 2 && h == 1) {
            EXPECT_TRUE(std::isnan(got.out(0, i, h, d))) << d;
          } else if (i >= 4 && d == 7) {
            EXPECT_EQ(got.out(0, i, h, d), infinity);
          }
      }
  }
}

}  // namespace
