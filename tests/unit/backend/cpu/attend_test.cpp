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
  mha::AttendCall<T, Source, M, mha::NoScore> call;
  call.q = q.view();
  call.kv = kv;
  call.mask = mask;
  call.out = out.view();
  call.log_sum_exp = lse.view();
  call.shape = {q.extent(0), q.extent(2), q.extent(1), keys, keys - q.extent(1)};
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
Index few_rows_run(Index queries, Index heads, Index kv_heads, Index head_dim, Index value_dim, bool drops) {
  const Tensor<T, 4> q(1, queries, heads, head_dim);
  const Tensor<Stored, 4> k(1, 200, kv_heads, head_dim), v(1, 200, kv_heads, value_dim);
  Tensor<T, 4> out(1, queries, heads, value_dim);
  mha::AttendCall<T, mha::ContiguousKv<Stored>, mha::Full, mha::NoScore> call;
  call.q = q.view();
  call.kv = {k.view(), v.view()};
  call.out = out.view();
  call.shape = {1, heads, queries, 200, 200 - queries};
  call.kv_heads = kv_heads;
  call.head_dim = head_dim;
  call.value_dim = value_dim;
  if (drops) call.dropout.threshold = 1u << 31;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const mha::IsaLevel level = mha::current_isa();
  const auto any = mha::detail::cpu::any_call(call, level);
  const mha::detail::cpu::Tiling tiling(any, level, frame);
  Index most = 0;
  mha::detail::cpu::for_each_tile<T, Stored>(any, tiling, level, 1, workspace, mha::Serial{}, [&](auto& tile, Index t) {
    if (t == 0 || tile.few_rows() == 0) most = tile.few_rows();
    tile.attend();
  });
  return most;
}
template <class T, class Stored> void expect_explained(int& of_few, int& others) {
  for (const bool drops : {false, true})
    for (const Index queries : {1, 2, 3, 5, 8, 60})
      for (const Index group : {1, 4, 7})
        for (const Index dim : {16, 20, 64}) {
          const Index few = few_rows_run<T, Stored>(queries, 2 * group, 2, dim, dim, drops);
          const std::string text = Cpu{}.explain<T, Stored>({{1, 2 * group, queries, 200, 0}, 2, dim, dim, drops});
          const std::string expected =
              " of few rows, tiles of " + std::to_string(few) + (few == 1 ? " query" : " queries");
          EXPECT_EQ(text.find(expected) != std::string::npos, few > 0)
              << text << ": " << queries << " queries, " << group << " heads, " << few << " rows are run";
          EXPECT_EQ(text.find(" of few rows") != std::string::npos, few > 0) << text;
          EXPECT_EQ(text.find("widened as it is read") != std::string::npos, few > 0 && sizeof(Stored) == 2) << text;
          ++(few > 0 ? of_few : others);
        }
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
      for (Index t = 0; t < tiling.tiles; ++t) {
        const cpu::TileRows rows = tiling.rows(call, t);
        const Index queries = call.queries(rows.b), most = mha::detail::simd::widest_tile<float>(level);
        EXPECT_GT(rows.count, 0);
        EXPECT_LE(rows.lanes(), tiling.lanes);
        EXPECT_EQ(rows.h / group, (rows.h + rows.heads - 1) / group) << "heads of two groups in a tile";
        EXPECT_EQ(rows.heads, std::clamp<Index>(most / queries, 1, group)) << queries << " queries";
        cpu::for_each_row(rows, [&](Index h, Index i, Index) {
          ++times[static_cast<std::size_t>(offsets[static_cast<std::size_t>(rows.b)] + i) * heads +
                  static_cast<std::size_t>(h)];
        });
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<std::ptrdiff_t>(times.size()));
    }
  }
}

}  // namespace
