// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cpu/tile_keys.hpp>
#include <mha/backend/simd/tile_policies.hpp>
#include <mha/core/tensor.hpp>

#include "random.hpp"

namespace {

namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;
using mha::Index;
using mha::Tensor;
using mha::TileVisibility;

constexpr Index heads = 3, keys = cpu::key_block + 75, grain = 8;

/// What each head sees, whichever the query, and says so tile by tile.
struct Shown {
  std::array<std::string, std::size_t{heads}> seen;  // of key k: 'x' or '.'

  bool operator()(Index, Index h, Index, Index k) const { return of(h)[static_cast<std::size_t>(k)] == 'x'; }
  TileVisibility tile(Index, Index h, Index, Index, Index begin, Index end) const {
    const std::string part = of(h).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    if (part.find('x') == std::string::npos) return TileVisibility::none;
    return part.find('.') == std::string::npos ? TileVisibility::full : TileVisibility::partial;
  }
  const std::string& of(Index h) const { return seen[static_cast<std::size_t>(h)]; }
};

/// Keys in runs of seven.
struct ShortRuns : mha::ContiguousKv<float> {
  mha::KvRun<float> run(Index b, Index g, Index begin, Index end) const {
    return ContiguousKv::run(b, g, begin, std::min(end, begin + 7 - begin % 7));
  }
};

using Call = mha::AttendCall<float, mha::detail::AnyKv<float>, simd::AnyMask<float>, mha::NoScore>;
constexpr simd::TileLanes rows{.b = 1, .head = 3, .heads = heads, .first = 2, .rows = 5, .position = 42};

/// Two sequences of six heads, three to a key/value head.
struct Fixture {
  Tensor<float, 4> k{2, keys, 2, 4}, v{2, keys, 2, 6};
  ShortRuns kv{{k.view(), v.view()}};
  Call call_of(const simd::AnyMask<float>& mask) const {
    Call call{{},
              mha::detail::AnyKv<float>(kv),
              mask,
              {},
              {},
              {},
              {.batch = 2, .heads = 2 * heads, .queries = 9, .keys = keys},
              2,
              4,
              6};
    call.shape.origin = 40;
    return call;
  }
};

/// The mask of heads rows.head … as a mask of the call's heads.
struct OfTile : Shown {
  bool operator()(Index b, Index h, Index q, Index k) const { return Shown::operator()(b, h - rows.head, q, k); }
  TileVisibility tile(Index b, Index h, Index q, Index q_end, Index k, Index k_end) const {
    return Shown::tile(b, h - rows.head, q, q_end, k, k_end);
  }
};

TEST(TileKeys, SegmentsHoldWhatSomeHeadSeesAndNoWideGap) {
  support::Random random("segments");
  const Fixture fixture;
  for (int round = 0; round < 300; ++round) {
    OfTile mask;
    for (std::string& seen : mask.seen)
      for (seen = ""; seen.size() < std::size_t{keys};)
        seen.append(static_cast<std::size_t>(1 + random.below(120)), random.chance(0.3) ? 'x' : '.');
    const Call call = fixture.call_of({mask, mha::current_isa()});
    const cpu::TileKeys<Call> tile(call, rows, grain);
    for (const Index begin : {Index{0}, cpu::key_block}) {
      const Index end = std::min(begin + cpu::key_block, tile.count());
      const cpu::KeySegments segments = tile.segments(begin, end);
      std::string held(std::size_t{keys}, '.'), any = held;
      Index last = begin;
      for (const simd::KeyRange& range : segments) {
        ASSERT_LE(last, range.begin);
        ASSERT_LT(range.begin, range.end);
        ASSERT_LE(range.end, end);
        last = range.end;
        Index hidden = 0;  // keys in a row that nobody sees
        for (Index k = range.begin; k < range.end; ++k) {
          bool seen = false, all = true;
          for (Index h = 0; h < heads; ++h) {
            seen = seen || mask.Shown::operator()(0, h, 0, k);
            all = all && mask.Shown::operator()(0, h, 0, k);
          }
          EXPECT_TRUE(all || range.seen != TileVisibility::full);
          if (seen) {
            EXPECT_LT(hidden, 2 * cpu::smallest_gap - 1) << "before key " << k;
          }
          hidden = seen ? 0 : hidden + 1;
          held[static_cast<std::size_t>(k)] = 'x';
        }
      }
      for (Index k = begin; k < end; ++k)
        for (Index h = 0; h < heads; ++h) {
          if (mask.Shown::operator()(0, h, 0, k)) {
            EXPECT_EQ(held[static_cast<std::size_t>(k)], 'x') << k;
          }
        }
      Index row = 0, visited = 0;
      cpu::for_each_key(segments, [&](Index k, Index at) {
        EXPECT_EQ(at, row++);
        EXPECT_EQ(held[static_cast<std::size_t>(k)], 'x');
        ++visited;
      });
      EXPECT_EQ(visited, std::count(held.begin(), held.end(), 'x'));
    }
  }
}

TEST(TileKeys, WholeAndHiddenBlocksAreOneRangeAndNone) {
  const Fixture fixture;
  const mha::Full full;
  const Call open = fixture.call_of({full, mha::current_isa()});
  const cpu::KeySegments all = cpu::TileKeys<Call>(open, rows, grain).segments(0, cpu::key_block);
  ASSERT_EQ(all.end() - all.begin(), 1);
  EXPECT_EQ(all.begin()->begin, 0);
  EXPECT_EQ(all.begin()->end, cpu::key_block);
  EXPECT_EQ(all.begin()->seen, TileVisibility::full);
  OfTile nothing;
  nothing.seen.fill(std::string(std::size_t{keys}, '.'));
  const Call closed = fixture.call_of({nothing, mha::current_isa()});
  const cpu::KeySegments none = cpu::TileKeys<Call>(closed, rows, grain).segments(0, cpu::key_block);
  EXPECT_EQ(none.begin(), none.end());
}

TEST(TileKeys, SeenOnesAreWithoutTheBlocksAtEitherSideThatNobodySees) {
  const Fixture fixture;
  OfTile mask;
  mask.seen.fill(std::string(std::size_t{keys}, '.'));
  const auto seen = [&](Index begin, Index end) {
    const Call call = fixture.call_of({mask, mha::current_isa()});
    return cpu::TileKeys<Call>(call, rows, grain).seen(begin, end);
  };
  EXPECT_EQ(seen(0, keys).seen, TileVisibility::none);
  EXPECT_EQ(seen(0, 0).begin, seen(0, 0).end);
  mask.seen[1][cpu::key_block + 7] = 'x';
  EXPECT_EQ(seen(0, cpu::key_block).seen, TileVisibility::none);
  const simd::KeyRange some = seen(0, keys);
  EXPECT_EQ(some.seen, TileVisibility::partial);
  EXPECT_EQ(some.begin, cpu::key_block);
  EXPECT_GT(some.end, cpu::key_block + 7);
  EXPECT_LE(some.end, keys);
  mask.seen[0][0] = 'x';
  EXPECT_EQ(seen(0, keys).begin, 0) << "what one head sees is seen";
  mask.seen.fill(std::string(std::size_t{keys}, 'x'));
  EXPECT_EQ(seen(0, keys).seen, TileVisibility::full);
  EXPECT_EQ(seen(0, keys).end, keys);
}

TEST(TileKeys, RunsAreThoseOfItsKeysAndValues) {
  const Fixture fixture;
  const mha::Full full;
  const Call call = fixture.call_of({full, mha::current_isa()});
  const cpu::TileKeys<Call> tile(call, rows, grain);
  Index k = 10;
  tile.for_each_run(10, 50, [&](const mha::KvRun<float>& run, Index at) {
    EXPECT_EQ(at, k - 10);
    for (Index i = 0; i < run.count; ++i, ++k) {
      EXPECT_EQ(run.key + i * run.key_stride, fixture.k.view().pointer(1, k, 1, 0));
      EXPECT_EQ(run.value + i * run.value_stride, fixture.v.view().pointer(1, k, 1, 0));
    }
  });
  EXPECT_EQ(k, 50);
}

TEST(TileKeys, NextAreKeysThatLieTogetherAsLongAsThereAreSome) {
  Fixture fixture;
  const mha::Full full;
  const Call call = fixture.call_of({full, mha::current_isa()});
  const simd::NextRows<float> next = cpu::TileKeys<Call>(call, rows, grain).next(16);
  EXPECT_EQ(next.data, fixture.k.view().pointer(1, 16, 1, 0));
  EXPECT_EQ(next.stride, 8);
  EXPECT_EQ(next.dim, 4);
  EXPECT_EQ(next.count, 5);
  EXPECT_EQ((cpu::TileKeys<Call>(call, rows, grain).next(keys).count), 0);
  const Index offsets[] = {0, 3, 21};  // sequence 1 of a ragged call has 18 keys
  fixture.kv.offsets = {offsets, 3};
  const cpu::TileKeys<Call> ragged(call, rows, grain);
  EXPECT_EQ(ragged.count(), 18);
  EXPECT_EQ(ragged.next(16).count, 2);
  EXPECT_EQ(ragged.next(18).count, 0);
}

TEST(TileKeys, WhatComesNextIsABlockRunByRun) {
  const Fixture fixture;
  const mha::Full full;
  const Call call = fixture.call_of({full, mha::current_isa()});
  const cpu::TileKeys<Call> tile(call, rows, grain);
  cpu::KeyRuns<float> runs;
  for (const Index begin : {Index{0}, Index{9}, Index{keys - 20}, Index{keys - 1}, keys}) {
    tile.next(begin, runs);
    Index k = begin;
    for (Index i = 0; i < runs.size(); ++i) {
      EXPECT_EQ(runs.keys(i, runs.size()).data->data, fixture.k.view().pointer(1, k, 1, 0));
      EXPECT_EQ(runs.values(i, runs.size()).data->data, fixture.v.view().pointer(1, k, 1, 0));
      EXPECT_LE(runs.count(i), 7);
      k += runs.count(i);
    }
    EXPECT_EQ(k, std::min(begin + cpu::key_block, Index{keys}));
  }
}

}  // namespace
