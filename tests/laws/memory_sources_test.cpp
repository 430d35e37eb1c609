// SPDX-License-Identifier: Apache-2.0
// Cross-attention does not ask where a memory's keys and values lie: layer(x, source) is layer(x, projected).
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "kv_copies.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::SequenceId;
using mha::Tensor;

constexpr Index E = 24, M = 10;  // widths of x and of a memory's rows
const mha::Config config{.d_model = E, .num_heads = 6, .head_dim = 8, .value_dim = 5, .kv_model = M};

template <class T, class B>
using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Rotary<>, mha::QkNorm, mha::SoftCap>;
template <class T, class B> Layer<T, B> drawn(std::uint64_t seed) {
  Layer<T, B> layer(config, mha::SoftCap{.cap = 4});
  layer.initialize(mha::XavierUniform{.seed = seed});
  return layer;
}

std::vector<Index> offsets_of(const std::vector<Index>& lengths) {
  std::vector<Index> offsets{0};
  for (const Index n : lengths) offsets.push_back(offsets.back() + n);
  return offsets;
}
template <class T> mha::TensorView<const T, 2> part(const Tensor<T, 2>& rows, Index begin, Index count) {
  return {rows.data() + begin * rows.extent(1), {count, rows.extent(1)}, {rows.extent(1), 1}};
}

/// Memories and queries of different lengths, each one after another.
template <class T> struct Case {
  std::vector<Index> memories, queries;
  std::vector<Index> m_offsets = offsets_of(memories), q_offsets = offsets_of(queries);
  Tensor<T, 2> x, memory;

  Case(support::Random& random, std::vector<Index> of_memories, std::vector<Index> of_queries)
      : memories(std::move(of_memories)),
        queries(std::move(of_queries)),
        x(q_offsets.back(), E),
        memory(m_offsets.back(), M) {
    random.fill(x);
    random.fill(memory);
  }
  Index batch() const { return static_cast<Index>(memories.size()); }
  Index longest() const { return *std::max_element(memories.begin(), memories.end()); }
};

/// What a call writes, over poison.
template <class T> struct Result {
  Tensor<T, 2> y;
  Tensor<mha::Accumulator<T>, 2> lse;
};
template <class T, class B, class Memory, class... Extra>
Result<T> run(const Layer<T, B>& layer, const Case<T>& c, const Memory& memory, const Extra&... extra) {
  Result<T> r{Tensor<T, 2>(c.x.extent(0), E), Tensor<mha::Accumulator<T>, 2>(config.num_heads, c.x.extent(0))};
  support::poison_all(r.y);
  support::poison_all(r.lse);
  layer(c.x, memory, mha::Ragged{c.q_offsets}, mha::into(r.y), mha::LogSumExp(r.lse), extra...);
  return r;
}
template <class T> void expect_same(const Result<T>& a, const Result<T>& b, const char* what) {
  EXPECT_EQ(support::differing(a.y, b.y), 0u) << what;
  EXPECT_EQ(support::differing(a.lse, b.lse), 0u) << what;
}
template <class T> void expect_near(const Result<T>& a, const Result<T>& b, const char* what) {
  EXPECT_LT(support::largest_difference(a.y, b.y), 60 * support::unit_roundoff<T>()) << what;
  EXPECT_LT(support::largest_difference(a.lse, b.lse), 60 * support::unit_roundoff<T>()) << what;
}

/// Rows of sequences one after another, as (B, longest, H, ·) over poison.
template <class T> Tensor<T, 4> padded(const Tensor<T, 4>& rows, const Case<T>& c) {
  Tensor<T, 4> to(c.batch(), c.longest(), rows.extent(2), rows.extent(3));
  support::poison_all(to);
  for (Index b = 0; b < c.batch(); ++b)
    for (Index p = 0; p < c.memories[std::size_t(b)]; ++p)
      for (Index g = 0; g < rows.extent(2); ++g)
        for (Index d = 0; d < rows.extent(3); ++d) to(b, p, g, d) = rows(0, c.m_offsets[std::size_t(b)] + p, g, d);
  return to;
}

/// Sequences of a cache to which the memories were written in pieces of at most so many rows.
template <class L, class Cache, class T>
std::vector<SequenceId> written(const L& layer, Cache& cache, const Case<T>& c, Index most) {
  std::vector<SequenceId> ids;
  for (Index b = 0; b < c.batch(); ++b) ids.push_back(cache.add());
  for (Index begin = 0; begin < c.longest(); begin += most) {
    std::vector<Index> rows;
    for (const Index n : c.memories) rows.push_back(std::clamp(n - begin, Index{0}, most));
    Tensor<T, 2> piece(offsets_of(rows).back(), M);
    auto* to = piece.data();
    for (Index b = 0; b < c.batch(); ++b)
      if (rows[std::size_t(b)] > 0)
        to = std::copy_n(&c.memory(c.m_offsets[std::size_t(b)] + begin, 0), rows[std::size_t(b)] * M, to);
    auto step = cache.step(ids, rows);
    layer.project_memory(piece, step[0]);
    step.commit();
  }
  return ids;
}

template <class T, class B, class... Extra>
void expect_any_source(const Layer<T, B>& layer, const Case<T>& c, bool any_bits, const Extra&... extra) {
  support::Random random("pages");
  const auto projected = layer.project_memory(c.memory, mha::Ragged{c.m_offsets});
  const auto expected = run(layer, c, projected, extra...);
  const auto expect = [&](const Result<T>& got, const char* what) {
    any_bits ? expect_same(got, expected, what) : expect_near(got, expected, what);
  };
  expect_same(run(layer, c, mha::ContiguousKv{projected.key.view(), projected.value.view(), c.m_offsets}, extra...),
              expected, "the same rows as a source");
  const auto key = padded(projected.key, c), value = padded(projected.value, c);
  expect(run(layer, c, mha::ContiguousKv{key.view(), value.view(), {}, c.memories}, extra...), "rows with lengths");
  expect(run(layer, c, support::PagedCopy<T>(random, key.view(), value.view(), c.memories, 16).source(), extra...),
         "pages");
  expect(
      run(layer, c, support::RingCopy<T>(key.view(), value.view(), c.memories, c.longest() + 1, 0).source(), extra...),
      "a ring that holds all");
  const auto expect_cache = [&](auto cache, Index most, const char* what) {
    const auto ids = written(layer, cache, c, most);
    const auto step = cache.step(ids, 0);
    expect(run(layer, c, step.source(0), extra...), what);
  };
  const mha::CacheSizes sizes{.sequences = c.batch()};
  expect_cache(mha::make_cache(layer, mha::Contiguous{.length = c.longest()}, sizes), c.longest(), "a cache");
  const mha::Paged pages{.pages = 64, .length = c.longest() + 20, .page = 16};
  expect_cache(mha::make_cache(layer, pages, sizes), 1 + random.below(c.longest()), "a cache of pages, in pieces");
}

template <class T, class B> void expect_any_source(std::uint64_t seed, bool any_bits) {
  support::Random random("memory sources");
  const auto layer = drawn<T, B>(seed);
  for (const auto& c : {Case<T>(random, {37, 1, 70}, {1, 1, 1}), Case<T>(random, {150, 5}, {9, 40}),
                        Case<T>(random, {3, 16, 17, 33}, {0, 2, 1, 5})}) {
    Tensor<T, 2> residual(c.x.extent(0), E);
    random.fill(residual);
    std::vector<Index> origins;
    for (Index b = 0; b < c.batch(); ++b) origins.push_back(c.memories[std::size_t(b)] - c.queries[std::size_t(b)]);
    const mha::SlidingWindow all{.left = 1000, .right = 1000};
    expect_any_source(layer, c, any_bits, all, mha::Origin{origins}, mha::residual(residual));
    std::fill(origins.begin(), origins.end(), 2);
    const mha::SlidingWindow near{.left = 2, .right = 30};
    expect_any_source(layer, c, any_bits, near, mha::Origin{origins}, mha::residual(residual));
  }
}

TEST(MemorySources, GiveTheBitsOfAProjectedMemoryOnCpu) {
  expect_any_source<float, mha::Cpu>(1, true);
  expect_any_source<double, mha::Cpu>(2, true);
  expect_any_source<mha::half, mha::Cpu>(3, true);
}
TEST(MemorySources, GiveTheBitsOfAProjectedMemoryOnSystolic) {
  expect_any_source<float, mha::Systolic<>>(5, true);
  expect_any_source<mha::bfloat16, mha::Systolic<>>(6, true);
}
TEST(MemorySources, GiveTheRowsOfAProjectedMemoryOnOthers) {
  expect_any_source<float, mha::EigenCpu>(7, false);
  expect_any_source<double, mha::Reference>(8, true);
}

TEST(MemorySources, HaveTheWeightsOfAProjectedMemory) {
  support::Random random("weights");
  const auto layer = drawn<float, mha::Cpu>(10);
  Tensor<float, 3> x(2, 5, E), memory(2, 40, M);
  random.fill(x);
  random.fill(memory);
  const auto p = layer.project_memory(memory);
  const std::vector<Index> lengths{40, 40};
  const support::PagedCopy<float> pages(random, p.key.view(), p.value.view(), lengths, 16);
  EXPECT_EQ(support::differing(layer.attention_weights(x, pages.source(), mha::Causal{}),
                               layer.attention_weights(x, p, mha::Causal{})),
            0u);
  EXPECT_EQ(support::differing(layer.mean_attention_weights(x, pages.source()), layer.mean_attention_weights(x, p)),
            0u);
}

/// A cache in 16 bits holds the rounded numbers, in every storage.
template <class Stored, class B> void expect_rounded_rows() {
  support::Random random("rounded memories");
  const auto layer = drawn<float, B>(11);
  const Case<float> c(random, {37, 1, 70}, {1, 3, 1});
  auto projected = layer.project_memory(c.memory, mha::Ragged{c.m_offsets});
  for (auto* rows : {&projected.key, &projected.value})
    for (float& r : *rows) r = static_cast<float>(Stored(r));
  auto cache = mha::make_cache<Stored>(layer, mha::Contiguous{.length = 70}, {.sequences = 3});
  const auto ids = written(layer, cache, c, 70);
  const auto step = cache.step(ids, 0);
  expect_same(run(layer, c, step.source(0)), run(layer, c, projected), "stored in 16 bits");
}
TEST(MemorySources, MayStoreSixteenBits) {
  expect_rounded_rows<mha::bfloat16, mha::Cpu>();
  expect_rounded_rows<mha::half, mha::Systolic<>>();
  expect_rounded_rows<mha::bfloat16, mha::Reference>();
}

/// Clips join, grow, are shared by beams and leave in any order: each row is as if its clip were alone.
template <class T, class B, class Storage> void expect_clips_alone(const Storage& storage, const char* name) {
  support::Random random(name);
  const auto layer = drawn<T, B>(12);
  auto cache = mha::make_cache(layer, storage, {.sequences = 6});
  struct Clip {
    SequenceId id;
    std::vector<T> rows{};
  };
  std::vector<Clip> clips;
  mha::Workspace workspace;
  for (int time = 0; time < 40; ++time) {
    if (clips.size() < 4 && random.chance(0.5)) clips.push_back({cache.add()});
    if (!clips.empty() && random.chance(0.2)) {
      const auto leaves = clips.begin() + random.below(int(clips.size()));
      cache.remove(leaves->id);
      clips.erase(leaves);
    }
    if (!clips.empty() && random.chance(0.6)) {
      Clip& clip = clips[std::size_t(random.below(int(clips.size())))];
      const Index n = std::min<Index>(1 + random.below(40), 90 - Index(clip.rows.size() / M));
      if (n > 0) {
        Tensor<T, 2> rows(n, M);
        random.fill(rows);
        auto step = cache.step(clip.id, n);
        layer.project_memory(rows, step[0], workspace);
        step.commit();
        clip.rows.insert(clip.rows.end(), rows.begin(), rows.end());
      }
    }
    // Up to six rows of any clips, some of them twice.
    std::vector<std::size_t> who;
    std::vector<SequenceId> ids;
    for (int n = clips.empty() ? 0 : random.below(7); n > 0; --n) {
      who.push_back(std::size_t(random.below(int(clips.size()))));
      ids.push_back(clips[who.back()].id);
    }
    Tensor<T, 3> x(Index(who.size()), 1, E);
    random.fill(x);
    const auto step = cache.step(ids, 0);
    const auto y = layer(x, step.source(0), workspace);
    for (std::size_t i = 0; i < who.size(); ++i) {
      const auto& rows = clips[who[i]].rows;
      const auto memory = layer.project_memory(mha::view(rows.data(), Index(rows.size() / M), M));
      const auto alone = layer(mha::view(&std::as_const(x)(Index(i), 0, 0), 1, E), memory);
      for (Index e = 0; e < E; ++e) ASSERT_EQ(support::bits(y(Index(i), 0, e)), support::bits(alone(0, e)));
    }
  }
}
TEST(MemorySources, OfClipsThatJoinAndLeaveAreThoseOfEachClipAlone) {
  const mha::Paged pages{.pages = 40, .length = 90, .page = 16};
  const mha::Contiguous rows{.length = 90};
  expect_clips_alone<float, mha::Cpu>(pages, "float in pages");
  expect_clips_alone<float, mha::Cpu>(rows, "float in rows");
  expect_clips_alone<float, mha::Systolic<>>(pages, "float in tiles and pages");
  expect_clips_alone<mha::bfloat16, mha::Systolic<>>(rows, "bfloat16 in tiles");
}

/// On a tape a source has the gradients of a projected memory.
template <class T, class B> void expect_gradients(double bound) {
  support::Random random("source gradients");
  const auto layer = drawn<T, B>(13);
  for (const auto& c : {Case<T>(random, {37, 1, 20}, {2, 1, 3}), Case<T>(random, {20, 20}, {4, 4})}) {
    Tensor<T, 2> dy(c.x.extent(0), E);
    random.fill(dy);
    const auto projected = layer.project_memory(c.memory, mha::Ragged{c.m_offsets});
    struct Gradients {
      Tensor<T, 2> y, dx;
      mha::LayerGradients<T> weights;
      decltype(layer.key_value_gradients(1, 1)) rows;
    };
    const auto gradients = [&](const auto& memory, auto&&... extra) {
      auto tape = layer.tape();
      auto weights = layer.gradients();
      auto rows = layer.key_value_gradients(c.batch(), c.longest());
      auto y = layer(c.x, memory, tape, extra...);
      auto dx = layer.backward(dy, tape, weights, rows);
      return Gradients{std::move(y), std::move(dx), std::move(weights), std::move(rows)};
    };
    const mha::Ragged ragged{c.q_offsets};
    const auto expected = gradients(projected, ragged, mha::Causal{});
    const auto key = padded(projected.key, c), value = padded(projected.value, c);
    const support::PagedCopy<T> pages(random, key.view(), value.view(), c.memories, 16);
    const auto expect = [&](const Gradients& got) {
      EXPECT_LE(support::largest_difference(got.y, expected.y), bound);
      EXPECT_LE(support::largest_difference(got.dx, expected.dx), bound);
      EXPECT_LE(support::largest_difference(got.weights.flat(), expected.weights.flat()), bound);
      EXPECT_LE(support::largest_difference(got.rows.key, expected.rows.key), bound);
      EXPECT_LE(support::largest_difference(got.rows.value, expected.rows.value), bound);
    };
    expect(gradients(pages.source(), ragged, mha::Causal{}));
    auto cache = mha::make_cache(layer, mha::Contiguous{.length = c.longest()}, {.sequences = c.batch()});
    const auto ids = written(layer, cache, c, c.longest());
    const auto step = cache.step(ids, 0);
    expect(gradients(step.source(0), ragged, mha::Causal{}));
    // The memory may go on: what the tape needs of it is on the tape.
    auto tape = layer.tape();
    auto weights = layer.gradients();
    auto rows = layer.key_value_gradients(c.batch(), c.longest());
    {
      const support::PagedCopy<T> gone(random, key.view(), value.view(), c.memories, 32);
      static_cast<void>(layer(c.x, gone.source(), tape, ragged, mha::Causal{}));
    }
    EXPECT_LE(support::largest_difference(layer.backward(dy, tape, weights, rows), expected.dx), bound);
    const auto stopped = layer.backward(dy, tape, mha::StopGradient{});
    EXPECT_LE(support::largest_difference(stopped, expected.dx), bound);
  }
}
TEST(MemorySources, HaveTheGradientsOfAProjectedMemory) {
  expect_gradients<float, mha::Cpu>(0);
  expect_gradients<double, mha::Reference>(1e-11);
  expect_gradients<double, mha::EigenCpu>(1e-11);
}

/// A batch (B, Lq, E) over memories of these lengths, on a tape, beside slopes of the loss.
void expect_slopes(const std::vector<Index>& lengths) {
  support::Random random("slopes");
  const auto layer = drawn<double, mha::Cpu>(14);
  Tensor<double, 3> x(2, 3, E), dy(2, 3, E);
  Tensor<double, 4> key(2, 9, 2, 8), value(2, 9, 2, 5);
  for (auto* t : {&x, &dy}) random.fill(*t);
  for (auto* t : {&key, &value}) random.fill(*t);
  const auto source = [&] {
    return mha::ContiguousKv{std::as_const(key).view(), std::as_const(value).view(), {}, lengths};
  };
  auto tape = layer.tape();
  auto d = layer.key_value_gradients(2, 9);
  static_cast<void>(layer(x, source(), tape, mha::Causal{}));
  const auto dx = layer.backward(dy, tape, d);
  const auto loss = [&] { return support::inner(dy, layer(x, source(), mha::Causal{})); };
  const auto slope = [&](double& at) {
    const double h = 1e-3, before = at;
    const auto at_step = [&](double by) {
      at = before + by;
      const double l = loss();
      at = before;
      return l;
    };
    return (8 * (at_step(h) - at_step(-h)) - (at_step(2 * h) - at_step(-2 * h))) / (12 * h);
  };
  for (int n = 0; n < 30; ++n) {
    const Index b = random.below(2), p = random.below(lengths[std::size_t(b)]), g = random.below(2);
    const Index i = random.below(8), j = random.below(5), q = random.below(3), e = random.below(E);
    EXPECT_NEAR(d.key(b, p, g, i), slope(key(b, p, g, i)), 1e-8);
    EXPECT_NEAR(d.value(b, p, g, j), slope(value(b, p, g, j)), 1e-8);
    EXPECT_NEAR(dx(b, q, e), slope(x(b, q, e)), 1e-8);
  }
  for (Index p = lengths[1]; p < 9; ++p)
    for (Index g = 0; g < 2; ++g) EXPECT_EQ(d.key(1, p, g, 0), 0) << "there is no such position";
}
TEST(MemorySources, HaveTheSlopesOfALossAsGradients) {
  expect_slopes({9, 4});
  expect_slopes({9, 9});
}

/// There is nothing to carry to other calls, so that backward() asks for no KeyValueGradients.
TEST(MemorySources, WithoutKeysHaveNoGradients) {
  support::Random random("no keys");
  const auto layer = drawn<double, mha::Cpu>(15);
  Tensor<double, 3> x(2, 3, E), dy(2, 3, E);
  for (auto* t : {&x, &dy}) random.fill(*t);
  Tensor<double, 4> key(2, 4, 2, 8), value(2, 4, 2, 5);
  support::poison_all(key), support::poison_all(value);
  const std::vector<Index> lengths{0, 0};
  auto tape = layer.tape();
  const auto y = layer(x, mha::ContiguousKv{key.view(), value.view(), {}, lengths}, tape);
  for (const double e : y) EXPECT_EQ(e, 0);
  for (const double e : layer.backward(dy, tape)) EXPECT_EQ(e, 0);
}

}  // namespace
