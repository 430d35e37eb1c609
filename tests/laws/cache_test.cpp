// SPDX-License-Identifier: Apache-2.0
// One row, one answer: what a layer gives through a cache has the bits of layer(x), however the rows came in.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <mha/systolic.hpp>

#include "law.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::KvCache;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;

constexpr Index E = 24;
const mha::Config config{.d_model = E, .num_heads = 4, .num_kv_heads = 2, .head_dim = 12, .value_dim = 8, .bias = true};

template <class T> Tensor<T, 2> random_rows(Index rows, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Tensor<T, 2> x(rows, E);
  for (T& e : x) e = T(normal(random));
  return x;
}
template <class T> mha::TensorView<const T, 2> rows_of(const Tensor<T, 2>& x, Index begin, Index end) {
  return mha::view(&x(begin, 0), end - begin, E);
}
template <class T> bool same_bits(const T* a, const T* b) { return std::memcmp(a, b, E * sizeof(T)) == 0; }

/// Fills a cache's memory with NaN, and has it forget that.
template <class Cache> void poison(Cache& cache, Index rows_of_a_sequence) {
  using F = typename Cache::Scalar;
  std::vector<SequenceId> all;
  for (Index i = 0; i < cache.max_sequences(); ++i) all.push_back(cache.add());
  for (const SequenceId id : all)
    for (Index done = 0; done < rows_of_a_sequence;) {
      const Index n = std::min<Index>(rows_of_a_sequence - done, cache.max_rows());
      auto step = cache.step(id, n);
      Tensor<F, 3> key(n, cache.shape().heads, cache.shape().dim),
          value(n, cache.shape().heads, cache.shape().value_dim);
      std::fill(key.begin(), key.end(), F(std::numeric_limits<float>::quiet_NaN()));
      std::fill(value.begin(), value.end(), F(std::numeric_limits<float>::quiet_NaN()));
      for (Index layer = 0; layer < cache.layers(); ++layer) step.append(layer, key, value);
      step.commit();
      done += n;
    }
  for (const SequenceId id : all) cache.remove(id);
}

/// The sequences of a test, the result of every row by layer(x) alone, and what comes out of a cache.
template <class Layer, class Cache> class Run {
 public:
  using T = typename Layer::Scalar;
  struct Sequence {
    SequenceId id;
    std::size_t text;  ///< which of the inputs it reads
    Index done;
  };

  Run(const Layer& layer, Cache& cache, const std::vector<Tensor<T, 2>>& texts)
      : layer_(layer), cache_(cache), texts_(texts) {
    for (const auto& text : texts) whole_.push_back(layer(text));
  }

  std::vector<Sequence> sequences;

  void add(std::size_t text) { sequences.push_back({cache_.add(), text, 0}); }

  /// Rows for sequences in one ragged step, each compared bit for bit.
  void step(const std::vector<std::size_t>& who, const std::vector<Index>& rows, bool commit = true) {
    std::vector<SequenceId> ids;
    Index all = 0;
    for (std::size_t i = 0; i < who.size(); ++i) {
      ids.push_back(sequences[who[i]].id);
      all += rows[i];
    }
    Tensor<T, 2> x(all, E), y(all, E);
    Index at = 0;
    for (std::size_t i = 0; i < who.size(); ++i)
      for (Index n = 0; n < rows[i]; ++n, ++at)
        std::copy_n(&texts_[sequences[who[i]].text](sequences[who[i]].done + n, 0), E, &x(at, 0));
    std::fill(y.begin(), y.end(), T(std::numeric_limits<float>::quiet_NaN()));
    auto step = cache_.step(ids, rows);
    layer_(x, step[0], mha::into(y), workspace_);
    at = 0;
    for (std::size_t i = 0; i < who.size(); ++i)
      for (Index n = 0; n < rows[i]; ++n, ++at) {
        const Sequence& s = sequences[who[i]];
        ASSERT_TRUE(same_bits(&y(at, 0), &whole_[s.text](s.done + n, 0)))
            << "row " << s.done + n << " of text " << s.text << " in a step of " << who.size() << " sequences";
      }
    if (!commit) return;
    step.commit();
    for (std::size_t i = 0; i < who.size(); ++i) sequences[who[i]].done += rows[i];
  }

  Index left(std::size_t i) const { return texts_[sequences[i].text].extent(0) - sequences[i].done; }

 private:
  const Layer& layer_;
  Cache& cache_;
  const std::vector<Tensor<T, 2>>& texts_;
  std::vector<Tensor<T, 2>> whole_;
  typename Layer::Workspace workspace_;
};

/// Chunks of all sizes, single rows, forks, dropped steps, rollbacks and restored sequences, in one cache.
template <class Layer, class Cache> void one_answer(const Layer& layer, Cache& cache, Index length, unsigned seed) {
  using T = typename Layer::Scalar;
  std::mt19937 random(seed);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  std::vector<Tensor<T, 2>> texts;
  for (const Index n : {length, length - 7, length / 2}) texts.push_back(random_rows<T>(n, random));
  poison(cache, length);
  Run<Layer, Cache> run(layer, cache, texts);
  for (std::size_t text = 0; text < texts.size(); ++text) run.add(text);
  for (int round = 0;; ++round) {
    std::vector<std::size_t> who;
    std::vector<Index> rows;
    for (std::size_t i = 0; i < run.sequences.size(); ++i) {
      const Index left = run.left(i);
      if (left == 0 || below(4) == 0) continue;
      const Index most = std::min(left, cache.max_rows());
      who.push_back(i);
      rows.push_back(below(2) == 0 ? 1 : 1 + below(std::min<Index>(most, 60)));
    }
    bool more = false;
    for (std::size_t i = 0; i < run.sequences.size(); ++i) more = more || run.left(i) > 0;
    if (!more) break;
    if (who.empty()) continue;
    if (below(5) == 0) run.step(who, rows, false);  // dropped, then done again
    run.step(who, rows);
    if (testing::Test::HasFatalFailure()) return;

    auto& s = run.sequences[static_cast<std::size_t>(below(static_cast<Index>(run.sequences.size())))];
    const Index back = s.done - below(std::min<Index>(s.done, 9) + 1);
    switch (below(4)) {
      case 0:
        if (cache.can_truncate(s.id, back)) {
          cache.truncate(s.id, back);
          s.done = back;
        }
        break;
      case 1:
        if (cache.can_truncate(s.id, back)) {  // the fork goes on in the place of the sequence
          const SequenceId forked = cache.fork(s.id, back);
          cache.remove(s.id);
          s.id = forked;
          s.done = back;
        }
        break;
      case 2: {
        const auto saved = cache.save(s.id);
        cache.remove(s.id);
        s.id = cache.restore(saved);
        break;
      }
      default:
        break;
    }
  }
}

template <class Layer> void through_every_storage(const Layer& layer, Index length, unsigned seed) {
  const mha::CacheSizes sizes{.sequences = 4};
  {
    auto cache = mha::make_cache(layer, Contiguous{.length = length}, sizes);
    one_answer(layer, cache, length, seed);
  }
  for (const Index page : {16, 64}) {
    SCOPED_TRACE("pages of " + std::to_string(page));
    auto cache = mha::make_cache(layer, Paged{.pages = 4 * (length / page + 2), .length = length, .page = page}, sizes);
    one_answer(layer, cache, length, seed + 1);
  }
}

using Windowed = mha::And<mha::Causal, mha::Or<mha::SlidingWindow, mha::FirstKeys>>;

template <class B, class T> void every_storage_and_a_ring(Index length, unsigned seed) {
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<mha::Halves>, mha::QkNorm> layer(config);
  layer.initialize(mha::XavierUniform{.seed = seed});
  through_every_storage(layer, length, seed);

  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, Windowed, mha::Rotary<mha::Halves>> windowed(
      config, Windowed{mha::Causal{}, {mha::SlidingWindow{.left = 37}, mha::FirstKeys{.count = 3}}});
  windowed.initialize(mha::XavierUniform{.seed = seed});
  auto cache = mha::make_cache(windowed, Ring{.left = 37, .rows = 11, .first = 3}, {.sequences = 4});
  SCOPED_TRACE("a ring");
  one_answer(windowed, cache, length, seed);
}

TEST(Cache, GivesTheBitsOfTheWholeCallOnCpu) {
  laws::at_every_isa([] {
    every_storage_and_a_ring<mha::Cpu, float>(150, 1);
    every_storage_and_a_ring<mha::Cpu, mha::bfloat16>(150, 2);
  });
}

TEST(Cache, GivesTheBitsOfTheWholeCallAcrossChunksOfKeys) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 5});
  through_every_storage(layer, 4200, 5);
}

TEST(Cache, GivesTheBitsOfTheWholeCallOnMatrixUnits) {
  every_storage_and_a_ring<mha::Systolic<>, float>(150, 3);
  every_storage_and_a_ring<mha::Systolic<>, mha::bfloat16>(150, 4);
}

// Values in whole tiles and not, over several blocks of tiles, which a Contiguous cache in bfloat16 keeps as the unit
// reads them.
TEST(Cache, GivesTheBitsOfTheWholeCallFromTiles) {
  for (const mha::MatrixUnit unit : {mha::MatrixUnit::portable, mha::MatrixUnit::dot_product, mha::MatrixUnit::amx}) {
    if (!mha::missing(unit).empty()) continue;
    SCOPED_TRACE(to_string(unit));
    const mha::MatrixUnit before = mha::current_unit();
    mha::force_unit(unit);
    for (const Index value_dim : {16, 33, 48}) {
      SCOPED_TRACE(value_dim);
      mha::MultiHeadAttention<mha::bfloat16, mha::Systolic<>, mha::GroupedQuery<2>, mha::Causal> layer(
          {.d_model = E, .num_heads = 4, .num_kv_heads = 2, .head_dim = 32, .value_dim = value_dim});
      layer.initialize(mha::XavierUniform{.seed = 11});
      auto cache = mha::make_cache(layer, Contiguous{.length = 560}, {.sequences = 4});
      one_answer(layer, cache, 560, 12);
    }
    mha::force_unit(before);
  }
}

TEST(Cache, DoesNotDependOnThreads) {
  std::mt19937 random(7);
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::MultiQuery, mha::Causal>;
  Layer one({.d_model = E, .num_heads = 4, .head_dim = 16}, mha::Cpu(mha::ThreadPool(1))),
      three({.d_model = E, .num_heads = 4, .head_dim = 16}, mha::Cpu(mha::ThreadPool(3)));
  one.initialize(mha::XavierUniform{.seed = 8});
  three.borrow(one);
  const auto x = random_rows<float>(9000, random);
  auto of_one = mha::make_cache(one, Contiguous{.length = 9000}),
       of_three = mha::make_cache(three, Contiguous{.length = 9000});
  of_one.add();
  of_three.add();
  for (const auto& [begin, end] : {std::pair<Index, Index>{0, 5000}, {5000, 8998}, {8998, 8999}, {8999, 9000}}) {
    const auto a = one.step(rows_of(x, begin, end), of_one), b = three.step(rows_of(x, begin, end), of_three);
    for (Index i = 0; i < end - begin; ++i) ASSERT_TRUE(same_bits(&a(i, 0), &b(i, 0))) << "row " << begin + i;
  }
}

// A wider layer over a narrower cache: the stored rows are what is attended to, in every order of steps.
TEST(Cache, ANarrowCacheGivesOneAnswerToo) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 9});
  std::mt19937 random(10);
  const auto x = random_rows<float>(200, random);
  auto whole = mha::make_cache<mha::bfloat16>(layer, Contiguous{.length = 200}),
       single = mha::make_cache<mha::bfloat16>(layer, Contiguous{.length = 200});
  auto pages = mha::make_cache<mha::bfloat16>(layer, Paged{.pages = 20, .length = 200, .page = 16});
  for (auto add : {whole.add(), single.add(), pages.add()}) static_cast<void>(add);
  const auto expected = layer.prefill(x, whole);
  const auto in_float = layer(x);
  float furthest = 0;
  for (Index i = 0; i < 200; ++i) {
    const auto a = layer.step(rows_of(x, i, i + 1), single), b = layer.step(rows_of(x, i, i + 1), pages);
    ASSERT_TRUE(same_bits(&a(0, 0), &expected(i, 0))) << "row " << i;
    ASSERT_TRUE(same_bits(&b(0, 0), &expected(i, 0))) << "row " << i;
    for (Index e = 0; e < E; ++e) furthest = std::max(furthest, std::abs(expected(i, e) - in_float(i, e)));
  }
  EXPECT_GT(furthest, 0.0f) << "the cache stored float";
  EXPECT_LT(furthest, 0.05f);
}

}  // namespace
