// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/core/tensor.hpp>

#include "../simd/levels.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TileVisibility;
using Cpu = mha::CpuWith<mha::Serial>;

/// A source whose runs are at most `page` keys long: what a paged cache will look like.
template <class T> struct Pages : mha::ContiguousKv<T> {
  Index page = 1;
  mha::KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    return mha::ContiguousKv<T>::run(b, g, begin, std::min(end, (begin / page + 1) * page));
  }
};
static_assert(mha::KvSource<Pages<float>>);

template <class T, class Source, class M>
auto call_of(const Tensor<T, 4>& q, const Source& kv, Tensor<T, 4>& out, Tensor<T, 3>& lse, Index kv_heads, Index keys,
             const M& mask) {
  const mha::CallShape shape{q.extent(0), q.extent(2), q.extent(1), keys, keys - q.extent(1)};
  mha::AttendCall<T, Source, M, mha::NoScore> call{q.view(), kv, mask, {}, out.view(), lse.view(), shape};
  call.kv_heads = kv_heads;
  call.head_dim = q.extent(3);
  call.value_dim = out.extent(3);
  call.scale = T(0.25);
  return call;
}

TEST(Attend, ReadsASourceRunByRun) {
  support::Random random("runs");
  const Tensor<float, 4> shape(2, 40, 4, 6);
  Tensor<float, 4> q = shape, k(2, 300, 2, 6), v(2, 300, 2, 5), whole(2, 40, 4, 5), paged(2, 40, 4, 5);
  Tensor<float, 3> lse(2, 4, 40), paged_lse(2, 4, 40);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  const mha::ContiguousKv<float> kv{k.view(), v.view()};
  mha::Workspace workspace;
  Cpu{}.attend(call_of(q, kv, whole, lse, 2, 300, mha::Causal{}), workspace);
  for (const Index page : {1, 7, 16, 64, 128}) {
    support::poison_all(paged);
    Cpu{}.attend(call_of(q, Pages<float>{kv, page}, paged, paged_lse, 2, 300, mha::Causal{}), workspace);
    EXPECT_EQ(support::differing(paged, whole), 0u) << "pages of " << page;
    EXPECT_EQ(support::differing(paged_lse, lse), 0u) << "pages of " << page;
  }
}

// A result without columns: nothing is written, and the log-sum-exps are there as ever.
TEST(Attend, TakesValuesOfSizeZero) {
  support::Random random("no values");
  for (const Index queries : {1, 3, 40}) {
    Tensor<float, 4> q(1, queries, 2, 16), k(1, 130, 1, 16), v(1, 130, 1, 0), out(1, queries, 2, 0);
    Tensor<float, 3> lse(1, 2, queries), expected(1, 2, queries);
    random.fill(q);
    random.fill(k);
    mha::attention_into<Cpu>(out, q, k, v, mha::Causal{}, mha::LogSumExp(lse));
    mha::attention_into<mha::Reference>(out, q, k, v, mha::Causal{}, mha::LogSumExp(expected));
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < queries; ++i) EXPECT_NEAR(lse(0, h, i), expected(0, h, i), 1e-5) << i;
  }
}

/// What runs a call, by its tiles: the most rows of kernels of few rows, 0 if queries lie in lanes.
template <class T, class Stored>
Index few_rows_run(Index queries, Index keys, Index heads, Index kv_heads, Index head_dim, Index value_dim, bool drops,
                   Index workers) {
  const Tensor<T, 4> q(1, queries, heads, head_dim);
  const Tensor<Stored, 4> k(1, keys, kv_heads, head_dim), v(1, keys, kv_heads, value_dim);
  Tensor<T, 4> out(1, queries, heads, value_dim);
  mha::AttendCall<T, mha::ContiguousKv<Stored>, mha::Full, mha::NoScore> call;
  call.q = q.view();
  call.kv = {k.view(), v.view()};
  call.out = out.view();
  call.shape = {1, heads, queries, keys, keys - queries};
  call.kv_heads = kv_heads;
  call.head_dim = head_dim;
  call.value_dim = value_dim;
  if (drops) call.dropout.threshold = 1u << 31;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const mha::IsaLevel level = mha::current_isa();
  const auto any = mha::detail::cpu::any_call(call, level);
  mha::detail::cpu::Tiling tiling(any, level, frame);
  tiling.share(any, level, workers);
  Index most = 0;
  mha::detail::cpu::for_each_tile<T, Stored>(any, tiling, level, mha::detail::cpu::Pass::attend, workspace,
                                             mha::Serial{}, [&](auto& tile, const auto& task) {
                                               const bool first = task.b == 0 && task.tile == 0;
                                               if (first || tile.few_rows() == 0) most = tile.few_rows();
                                             });
  return most;
}
template <class T, class Stored>
void expect_explained(Index queries, Index keys, Index group, Index dim, bool drops, Index workers, int& of_few,
                      int& others) {
  const mha::CpuWith<mha::ThreadPool> backend{mha::ThreadPool(workers)};
  const Index few = few_rows_run<T, Stored>(queries, keys, 2 * group, 2, dim, dim, drops, workers);
  const std::string text = backend.explain<T, Stored>({{1, 2 * group, queries, keys, 0}, 2, dim, dim, drops});
  const std::string expected = " of few rows, tiles of " + std::to_string(few) + (few == 1 ? " query" : " queries");
  EXPECT_EQ(text.find(expected) != std::string::npos, few > 0)
      << text << ": " << queries << " queries, " << group << " heads, " << few << " rows are run";
  EXPECT_EQ(text.find(" of few rows") != std::string::npos, few > 0) << text;
  EXPECT_EQ(text.find("widened as it is read") != std::string::npos, few > 0 && sizeof(Stored) == 2) << text;
  ++(few > 0 ? of_few : others);
}
template <class T, class Stored> void expect_explained(int& of_few, int& others) {
  for (const bool drops : {false, true})
    for (const Index queries : {1, 2, 3, 5, 8, 60})
      for (const Index group : {1, 4, 7})
        for (const Index dim : {16, 20, 64})
          expect_explained<T, Stored>(queries, 200, group, dim, drops, 1, of_few, others);
  for (const Index workers : {2, 5})
    for (const Index group : {7, 32})
      for (const Index keys : {4096, 9000})
        expect_explained<T, Stored>(1, keys, group, 16, false, workers, of_few, others);
}

TEST(Attend, IsExplainedByTheKernelThatRuns) {
  int of_few = 0, others = 0;
  const mha::IsaLevel before = mha::current_isa();
  unit::for_each_level([&](auto isa) {
    mha::force_isa(isa.level);
    SCOPED_TRACE(mha::to_string(isa.level));
    expect_explained<float, float>(of_few, others);
    expect_explained<float, mha::bfloat16>(of_few, others);
    expect_explained<mha::half, mha::half>(of_few, others);
    expect_explained<double, double>(of_few, others);
  });
  mha::force_isa(before);
  EXPECT_GT(of_few, 0);
  EXPECT_GT(others, 0);
}

/// Counts how often a pair is asked for, and answers tile() as told.
struct Counting {
  TileVisibility left, right;  ///< of keys below 128, and of the others
  std::atomic<int>* pairs;
  bool operator()(Index, Index, Index, Index) const {
    ++*pairs;
    return true;
  }
  TileVisibility tile(Index, Index, Index, Index, Index k_begin, Index k_end) const {
    if (k_end <= 128) return left;
    return k_begin >= 128 ? right : TileVisibility::partial;
  }
};

TEST(Attend, AsksPairsOfPartialTilesOnly) {
  support::Random random("classification");
  Tensor<float, 4> q(1, 20, 1, 4), k(1, 256, 1, 4), v(1, 256, 1, 3);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  std::atomic<int> pairs{0};
  const auto run = [&](TileVisibility left, TileVisibility right) {
    pairs = 0;
    return mha::attention<Cpu>(q, k, v, Counting{left, right, &pairs});
  };
  run(TileVisibility::full, TileVisibility::full);
  EXPECT_EQ(pairs, 0);
  run(TileVisibility::full, TileVisibility::partial);
  EXPECT_EQ(pairs, 20 * 128);
  // A hidden tile is neither asked nor read: NaN there changes nothing.
  const auto clean = run(TileVisibility::none, TileVisibility::full);
  EXPECT_EQ(pairs, 0);
  for (Index j = 0; j < 128; ++j) k(0, j, 0, 0) = v(0, j, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(support::differing(run(TileVisibility::none, TileVisibility::full), clean), 0u);
}

TEST(Attend, CausalTilesBeyondTheDiagonalAreNotVisited) {
  support::Random random("causal work");
  const Index length = 512;
  Tensor<float, 4> q(1, length, 1, 4), k(1, length, 1, 4), v(1, length, 1, 3);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  std::atomic<int> scored{0};
  const auto counted = [&](auto s, Index, Index, Index, Index) {
    ++scored;
    return s;
  };
  static_cast<void>(mha::attention<Cpu>(q, k, v, mha::Causal{}, mha::score(counted)));
  const int visible = length * (length + 1) / 2;
  EXPECT_GE(scored, visible);
  // At most one tile of up to 48 queries and 8 keys of grain beside the diagonal.
  EXPECT_LE(scored, visible + length * (48 + 8));
}

/// A window of 20 keys that counts how often it is asked.
struct CountedWindow {
  mha::SlidingWindow window;
  std::atomic<int>* asked;
  bool operator()(Index b, Index h, Index q, Index k) const { return window(b, h, q, k); }
  TileVisibility tile(Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    ++*asked;
    return window.tile(b, h, q, q_end, k, k_end);
  }
};

// What of many keys is far from the window takes one question for each chunk, whether tiles are whole or share keys.
TEST(Attend, AsksOfChunksThatNobodySeesOnce) {
  support::Random random("far from the window");
  constexpr Index keys = 40000;
  Tensor<float, 4> q(1, 1, 2, 16), k(1, keys, 2, 16), v(1, keys, 2, 16);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  std::atomic<int> asked{0};
  const CountedWindow window{{.left = 19, .right = 0}, &asked};
  auto near = [&](const Tensor<float, 4>& rows) {
    auto last = rows.view();
    last.data = rows.view().pointer(0, keys - 20, 0, 0);
    last.extent[1] = 20;
    return last;
  };
  const auto expected = mha::attention<Cpu>(q, near(k), near(v));
  EXPECT_EQ(support::differing(mha::attention<Cpu>(q, k, v, window), expected), 0u);
  EXPECT_GT(asked, 0);
  EXPECT_LE(asked, 2 * (mha::detail::simd::all_chunks(keys) + 2 * 4096 / mha::detail::cpu::key_block));
  asked = 0;
  EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(q, k, v, window), expected), 0u);
  EXPECT_LE(asked, 4 * (mha::detail::simd::all_chunks(keys) + 2 * 4096 / mha::detail::cpu::key_block));
}

TEST(Attend, WidensSixteenBitKeysByValue) {
  support::Random random("widened");
  Tensor<mha::half, 4> q(1, 9, 2, 5), k(1, 40, 1, 5), v(1, 40, 1, 4);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  const auto wide = [](const Tensor<mha::half, 4>& t) {
    Tensor<float, 4> w(t.extent(0), t.extent(1), t.extent(2), t.extent(3));
    for (std::size_t i = 0; i < t.size(); ++i) w.data()[i] = t.data()[i];
    return w;
  };
  const auto out = mha::attention<Cpu>(q, k, v, mha::Causal{});
  const auto exact = mha::attention<Cpu>(wide(q), wide(k), wide(v), mha::Causal{});
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(support::bits(out.data()[i]), support::bits(mha::half(exact.data()[i])));
}

TEST(Attend, WritesOnlyTheRowsOfShortSequences) {
  support::Random random("ragged tail");
  Tensor<float, 3> q(10, 1, 4), k(10, 1, 4), v(10, 1, 4), out(10, 1, 4);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  support::poison_all(out);
  const std::vector<Index> offsets = {0, 3, 3, 10};
  mha::attention_into<Cpu>(out, q, k, v, mha::Ragged{offsets});
  for (const float x : out) EXPECT_FALSE(std::isnan(x));
}

// Single tokens beside a long piece of a prompt are cut as they are alone: all heads of a group in one tile.
TEST(Tiling, CutsEverySequenceByItself) {
  namespace cpu = mha::detail::cpu;
  support::Random random("tiles of sequences");
  constexpr Index heads = 12, kv_heads = 3, group = heads / kv_heads;
  for (int round = 0; round < 30; ++round) {
    std::vector<Index> offsets{0};
    const Index one_of[] = {0, 1, 1, 3, 47, 48, 49, 300};
    for (int b = 0; b < 6; ++b) offsets.push_back(offsets.back() + one_of[random.below(8)]);
    Tensor<float, 3> q(offsets.back(), heads, 4), k(offsets.back(), kv_heads, 4);
    mha::AttendCall<float, mha::ContiguousKv<float>, mha::Full, mha::NoScore> call{};
    call.shape = {6, heads, 300, 300};
    call.kv_heads = kv_heads;
    call.q_offsets = offsets.data();
    call.kv = {mha::view_blhd(k.data(), 1, offsets.back(), kv_heads, 4),
               mha::view_blhd(k.data(), 1, offsets.back(), kv_heads, 4),
               {offsets.data(), 7}};
    for (const mha::IsaLevel level : {mha::IsaLevel::baseline, mha::current_isa()}) {
      mha::Workspace workspace;
      auto frame = workspace.frame();
      const cpu::Tiling tiling(call, level, frame);
      std::vector<int> times(static_cast<std::size_t>(offsets.back()) * heads);
      for (std::int64_t t = 0; t < tiling.tiles(); ++t) {
        const mha::detail::simd::TileTask task = tiling.tasks.task(cpu::Pass::attend, t);
        const mha::detail::simd::TileLanes rows = tiling.rows(call, task.b, task.tile);
        EXPECT_EQ(task.parts, 0);
        const Index queries = call.queries(rows.b), most = mha::detail::simd::widest_tile<float>(level);
        EXPECT_GT(rows.rows, 0);
        EXPECT_LE(rows.count(), tiling.lanes);
        EXPECT_EQ(rows.head / group, (rows.head + rows.heads - 1) / group) << "heads of two groups in a tile";
        EXPECT_EQ(rows.heads, std::clamp<Index>(most / queries, 1, group)) << queries << " queries";
        rows.for_each([&](Index h, Index i, Index) {
          ++times[static_cast<std::size_t>(offsets[static_cast<std::size_t>(rows.b)] + i) * heads +
                  static_cast<std::size_t>(h)];
        });
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<std::ptrdiff_t>(times.size()));
    }
  }
}

/// Queries of `group` heads that share keys, after so many keys of a sequence.
template <class M> struct Step {
  Index group, keys, queries, batch;
  M mask;
  Index heads = group, kv_heads = 1;
  Tensor<float, 4> q{batch, queries, heads, 16}, k{batch, keys, kv_heads, 16}, v{batch, keys, kv_heads, 16};
  Tensor<float, 4> out{batch, queries, heads, 16};
  Tensor<float, 3> lse{batch, heads, queries};

  auto call() { return call_of(q, mha::ContiguousKv<float>{k.view(), v.view()}, out, lse, kv_heads, keys, mask); }
};

/// f(tiling, call) for a step as so many workers share it.
template <class M, class F> void shared(Step<M>& step, mha::IsaLevel level, Index workers, F&& f) {
  const auto typed = step.call();
  const auto call = mha::detail::cpu::any_call(typed, level);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  mha::detail::cpu::Tiling tiling(call, level, frame);
  tiling.share(call, level, workers);
  f(tiling, call);
}

TEST(Tiling, HasEveryRowOfAChunkInOneTask) {
  namespace cpu = mha::detail::cpu;
  unit::for_each_level([](auto isa) {
    for (const Index group : {7, 32})
      for (const Index workers : {1, 2, 3, 5, 16})
        for (const Index queries : {1, 3, 50}) {
          Step<mha::Causal> step{group, 2 * cpu::key_chunk + 5, queries, 2, {}};
          shared(step, isa.level, workers, [&](const cpu::Tiling& tiling, const auto& call) {
            const Index chunks = 3;
            std::vector<int> times(static_cast<std::size_t>(2 * queries * group * chunks));
            mha::Workspace workspace;
            cpu::for_each_tile<float, float>(call, tiling, isa.level, cpu::Pass::attend, workspace, mha::Serial{},
                                             [&](auto& tile, const auto& task) {
                                               EXPECT_LE(tile.rows().count(), tiling.lanes);
                                               const bool whole = task.parts == 0;
                                               const Index chunk = whole ? 0 : task.chunk;
                                               tile.rows().for_each([&](Index h, Index i, Index) {
                                                 const Index row = (tile.rows().b * group + h) * queries + i;
                                                 for (Index n = 0; n < (whole ? chunks : 1); ++n)
                                                   ++times[static_cast<std::size_t>(row * chunks + chunk + n)];
                                               });
                                             });
            EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<std::ptrdiff_t>(times.size()))
                << group << " heads, " << workers << " workers, " << queries << " queries";
          });
        }
  });
}

TEST(Tiling, DividesTheHeadsOfAGroupWhereChunksAreFew) {
  namespace cpu = mha::detail::cpu;
  const mha::IsaLevel level = mha::current_isa();
  const auto tasks = [&](auto&& step, Index workers) {
    Index n = 0;
    shared(step, level, workers, [&](const cpu::Tiling& tiling, const auto&) {
      n = static_cast<Index>(tiling.tasks.count(mha::detail::cpu::Pass::attend));
    });
    return n;
  };
  EXPECT_GE(tasks(Step<mha::Causal>{32, 4096, 1, 1, {}}, 2), 2);
  EXPECT_EQ(tasks(Step<mha::Causal>{32, 4096, 1, 1, {}}, 2) % 2, 0);
  EXPECT_EQ(tasks(Step<mha::Causal>{4, 64, 1, 1, {}}, 2), 1) << "too little work";

  const Index group = mha::detail::simd::widest_tile<float>(level);
  EXPECT_EQ(tasks(Step<mha::Causal>{group, 4 * cpu::key_chunk, 1, 1, {}}, 2), 4) << "chunks enough";
}

/// One query for each of many sequences of so many keys, ragged.
struct RaggedStep {
  static constexpr Index heads = 14, kv_heads = 2, dim = 16;
  std::vector<Index> queries, keys;
  Tensor<float, 4> q, k, v, out;
  Tensor<float, 3> lse;

  explicit RaggedStep(const std::vector<Index>& lengths) : queries{0}, keys{0} {
    for (const Index n : lengths) {
      queries.push_back(queries.back() + 1);
      keys.push_back(keys.back() + n);
    }
    q = out = Tensor<float, 4>(1, queries.back(), heads, dim);
    k = v = Tensor<float, 4>(1, keys.back(), kv_heads, dim);
    lse = Tensor<float, 3>(1, heads, queries.back());
    support::Random random("steps of uneven lengths");
    for (auto* t : {&q, &k, &v}) random.fill(*t);
  }

  auto call() {
    const Index batch = static_cast<Index>(queries.size()) - 1;
    Index longest = 0;
    for (Index b = 0; b < batch; ++b)
      longest = std::max(longest, keys[static_cast<std::size_t>(b) + 1] - keys[static_cast<std::size_t>(b)]);
    auto call = call_of(q, mha::ContiguousKv<float>{k.view(), v.view(), {keys.data(), batch + 1}}, out, lse, kv_heads,
                        longest, mha::Full{});
    call.log_sum_exp = {};
    call.shape.batch = batch;
    call.shape.queries = 1;
    call.shape.origin = {};
    call.q_offsets = queries.data();
    return call;
  }
};

/// The keys that each task of the first pass over a call's tiles reads, after all rows were found to see all chunks
/// once, and the tiles of the second pass all their parts.
std::vector<Index> keys_of_tasks(RaggedStep& step, Index workers) {
  namespace cpu = mha::detail::cpu;
  namespace simd = mha::detail::simd;
  const auto typed = step.call();
  const auto call = cpu::any_call(typed, mha::current_isa());
  mha::Workspace workspace;
  auto frame = workspace.frame();
  cpu::Tiling tiling(call, mha::current_isa(), frame);
  tiling.share(call, mha::current_isa(), workers);
  std::vector<Index> read, seen(static_cast<std::size_t>(call.shape.batch));
  std::vector<int> parts(static_cast<std::size_t>(tiling.tasks.parts()));
  cpu::for_each_tile<float, float>(
      call, tiling, mha::current_isa(), cpu::Pass::attend, workspace, mha::Serial{}, [&](auto& tile, const auto& task) {
        const Index b = tile.rows().b, n = task.chunk;
        EXPECT_EQ(task.b, b);
        const bool whole = task.parts == 0;
        const Index keys = whole ? call.keys(b) : simd::chunk_end(n, call.keys(b)) - simd::chunk_begin(n);
        if (!whole) ++parts[static_cast<std::size_t>(task.part(n))];
        read.push_back(keys);
        seen[static_cast<std::size_t>(b)] += keys * tile.rows().count();
      });
  for (Index b = 0; b < call.shape.batch; ++b)
    EXPECT_EQ(seen[static_cast<std::size_t>(b)], call.keys(b) * RaggedStep::heads) << "sequence " << b;
  cpu::for_each_tile<float, float>(call, tiling, mha::current_isa(), cpu::Pass::merge, workspace, mha::Serial{},
                                   [&](auto& tile, const auto& task) {
                                     EXPECT_EQ(task.parts, simd::all_chunks(call.keys(tile.rows().b)));
                                     for (Index n = 0; n < task.parts; ++n)
                                       ++parts[static_cast<std::size_t>(task.part(n))];
                                   });
  EXPECT_EQ(std::count(parts.begin(), parts.end(), 2), static_cast<std::ptrdiff_t>(parts.size()));
  return read;
}

TEST(Tiling, SharesTheKeysOfSequencesThatAreMuchLonger) {
  std::vector<Index> lengths(40, 60);
  lengths[7] = 20000;
  lengths[30] = 9000;
  lengths[12] = 1500;  // two chunks
  for (const Index workers : {1, 2, 3, 5, 12}) {
    RaggedStep step(lengths);
    const std::vector<Index> read = keys_of_tasks(step, workers);
    const Index all = 2 * (20000 + 9000 + 1500 + 37 * 60), most = *std::max_element(read.begin(), read.end());
    EXPECT_LE(most, all / workers) << workers << " workers";
    EXPECT_EQ(most == 20000, workers == 1);
    EXPECT_EQ(std::count(read.begin(), read.end(), 1500), 2) << workers << " workers";
  }
}

TEST(Tiling, LeavesSequencesOfLikeLengthsWhole) {
  std::vector<Index> lengths(40, 2000);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] += 40 * static_cast<Index>(i);
  for (const Index workers : {2, 5}) {
    RaggedStep step(lengths);
    EXPECT_EQ(keys_of_tasks(step, workers).size(), 2 * lengths.size()) << workers << " workers";
  }
}

TEST(DividedRows, AreThoseOfAsManyTilesAsWorkersNeed) {
  namespace cpu = mha::detail::cpu;
  const auto most = [](Index queries, Index group, Index widest, Index chunks, Index workers) {
    const cpu::SequenceTiles cut(queries, group, widest);
    return cpu::divided_rows(cut, widest / 3, chunks, cut.tiles() * chunks, workers);
  };
  EXPECT_EQ(most(1, 32, 48, 1, 2), 16);
  EXPECT_EQ(most(1, 32, 48, 1, 8), 4);
  EXPECT_EQ(most(1, 32, 24, 1, 2), 16) << "24 and 8 heads are as many tiles, but not of the same size";
  EXPECT_EQ(most(1, 32, 48, 3, 2), 48) << "tasks enough";
  EXPECT_EQ(most(1, 32, 48, 3, 8), 11) << "three tiles, nine tasks";
  EXPECT_EQ(most(4, 32, 48, 1, 2), 32) << "four tiles of 32 rows, where tiles of 48, 48 and 32 would be two and one";
  EXPECT_EQ(most(4, 32, 48, 1, 1), 48) << "one worker";
  EXPECT_EQ(most(12, 12, 48, 1, 2), 48) << "four of 36 rows fill as many registers as three of 48";
  EXPECT_EQ(most(4, 48, 48, 1, 2), 48) << "four tiles are even already";
  EXPECT_EQ(most(17, 8, 48, 1, 3), 48) << "eight tiles of one head each, where four of two are enough";
  EXPECT_EQ(most(5, 32, 48, 1, 3), 32) << "six tiles of six heads at most";
  EXPECT_EQ(most(1, 7, 48, 1, 16), 1) << "no more than rows";
  EXPECT_EQ(most(50, 2, 48, 1, 8), 13);
  EXPECT_EQ(cpu::divided_rows({0, 4, 48}, 16, 1, 0, 4), 48) << "no query";
}

/// The bits of a step for several numbers of threads, and those of one head at a time.
template <class M> void expect_same_bits(Index group, Index keys, Index queries, Index batch, const M& mask) {
  support::Random random("threads and tiles");
  Step<M> step{group, keys, queries, batch, mask, 2 * group, 2};
  for (auto* t : {&step.q, &step.k, &step.v}) random.fill(*t);
  Tensor<float, 4> alone = step.out;
  Tensor<float, 3> alone_lse = step.lse;
  mha::Workspace workspace;
  const auto typed = step.call();
  for (Index h = 0; h < step.heads; ++h) {
    auto one = typed;
    const auto rows = [&](auto view) {
      view.data += h * view.stride[2];
      view.extent[2] = 1;
      return view;
    };
    const Index g = h / group;
    one.q = rows(one.q);
    one.out = alone.view();
    one.out.data += h * one.out.stride[2];
    one.log_sum_exp = alone_lse.view();
    one.log_sum_exp.data += h * one.log_sum_exp.stride[1];
    auto k = step.k.view(), v = step.v.view();
    k.data += g * k.stride[2];
    v.data += g * v.stride[2];
    one.kv = mha::ContiguousKv<float>{k, v};
    one.shape.heads = one.kv_heads = 1;
    Cpu{}.attend(one, workspace);
  }
  for (const Index workers : {1, 2, 3, 5}) {
    support::poison_all(step.out);
    support::poison_all(step.lse);
    mha::CpuWith<mha::ThreadPool>(mha::ThreadPool(workers)).attend(typed, workspace);
    EXPECT_EQ(support::differing(step.out, alone), 0u) << workers << " threads, " << group << " heads";
    EXPECT_EQ(support::differing(step.lse, alone_lse), 0u) << workers << " threads, " << group << " heads";
  }
}

TEST(Attend, HasTheSameBitsHoweverHeadsAreDivided) {
  constexpr Index chunk = mha::detail::cpu::key_chunk;
  const mha::IsaLevel before = mha::current_isa();
  unit::for_each_level([&](auto isa) {
    mha::force_isa(isa.level);
    expect_same_bits(32, chunk, 1, 1, mha::Causal{});
    expect_same_bits(7, 2 * chunk + 77, 1, 1, mha::Full{});
    expect_same_bits(7, chunk + 9, 3, 2, mha::Causal{});
    expect_same_bits(9, 2 * chunk + 1, 2, 1, mha::SlidingWindow{.left = 700});
  });
  mha::force_isa(before);
}

TEST(Attend, HasTheSameBitsWhereOnlyLongSequencesAreShared) {
  std::vector<Index> lengths(30, 70);
  lengths[0] = 5000;
  lengths[11] = 0;
  lengths[29] = 3100;
  RaggedStep step(lengths);
  mha::Workspace workspace;
  support::poison_all(step.out);
  Cpu{}.attend(step.call(), workspace);
  const Tensor<float, 4> alone = step.out;
  for (const float x : alone) EXPECT_FALSE(std::isnan(x));
  for (const Index workers : {2, 3, 7, 16}) {
    support::poison_all(step.out);
    mha::CpuWith<mha::ThreadPool>(mha::ThreadPool(workers)).attend(step.call(), workspace);
    EXPECT_EQ(support::differing(step.out, alone), 0u) << workers << " threads";
  }
}

TEST(Attend, DividesTilesOfSequencesOfAllLengths) {
  support::Random random("ragged tiles");
  const std::vector<Index> queries{0, 1, 4, 4, 5}, keys{0, 5000, 5003, 9200, 9300};
  constexpr Index heads = 14, kv_heads = 2, dim = 16;
  Tensor<float, 4> q(1, queries.back(), heads, dim), k(1, keys.back(), kv_heads, dim), v = k, out = q, alone = q;
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  Tensor<float, 3> lse(1, heads, queries.back());
  mha::Workspace workspace;
  auto call = call_of(q, mha::ContiguousKv<float>{k.view(), v.view()}, alone, lse, kv_heads, 5000, mha::Full{});
  call.log_sum_exp = {};
  call.shape.origin = {};
  for (std::size_t b = 0; b + 1 < queries.size(); ++b) {
    auto one = call;
    one.shape.queries = queries[b + 1] - queries[b];
    one.shape.keys = keys[b + 1] - keys[b];
    if (one.shape.queries == 0) continue;
    one.q.data += queries[b] * one.q.stride[1];
    one.out.data += queries[b] * one.out.stride[1];
    auto some_k = k.view(), some_v = v.view();
    some_k.data += keys[b] * some_k.stride[1];
    some_v.data += keys[b] * some_v.stride[1];
    some_k.extent[1] = some_v.extent[1] = one.shape.keys;
    one.kv = mha::ContiguousKv<float>{some_k, some_v};
    Cpu{}.attend(one, workspace);
  }
  call.shape.batch = 4;
  call.shape.queries = 3;
  call.q_offsets = queries.data();
  call.kv = {k.view(), v.view(), {keys.data(), 5}};
  call.out = out.view();
  for (const Index workers : {1, 2, 3, 5, 16}) {
    support::poison_all(out);
    mha::CpuWith<mha::ThreadPool>(mha::ThreadPool(workers)).attend(call, workspace);
    EXPECT_EQ(support::differing(out, alone), 0u) << workers << " threads";
  }
}

}  // namespace
