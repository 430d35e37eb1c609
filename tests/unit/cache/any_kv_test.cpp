// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <limits>

#include <gtest/gtest.h>

#include <mha/cache/any_kv.hpp>
#include <mha/core/tensor.hpp>

namespace {

using mha::Index;
using mha::detail::AnyKv;

/// 40 positions in runs of three, of which 5 to 9 and 20 are gone; held_end() is left to the runs.
struct Holes : mha::ContiguousKv<float> {
  static bool there(Index k) { return (k < 5 || k > 9) && k != 20; }
  Index held(Index, Index k) const {
    while (k < 40 && !there(k)) ++k;
    return k;
  }
  mha::KvRun<float> run(Index b, Index g, Index begin, Index end) const {
    Index stop = begin + 1;
    while (stop < std::min({end, Index{40}, begin + 3}) && there(stop)) ++stop;
    return ContiguousKv::run(b, g, begin, stop);
  }
};

TEST(AnyKv, IsTheSourceWithoutItsType) {
  const mha::Tensor<float, 4> k(2, 40, 3, 4), v(2, 40, 3, 5);
  const mha::ContiguousKv<float> kv{k.view(), v.view()};
  const AnyKv<float> any(kv);
  EXPECT_EQ(any.keys(1), 40);
  EXPECT_FALSE(any.drops());
  EXPECT_EQ(any.held(1, 7, 9), 7);
  EXPECT_EQ(any.held_end(1, 7, 9), 9);
  const auto run = any.run(1, 2, 7, 30);
  EXPECT_EQ(run.key, kv.run(1, 2, 7, 30).key);
  EXPECT_EQ(run.value, kv.run(1, 2, 7, 30).value);
  EXPECT_EQ(run.count, 23);
}

/// A key and its value at a time, at strides that no second one could have.
struct OneByOne : mha::ContiguousKv<float> {
  mha::KvRun<float> run(Index b, Index g, Index begin, Index) const {
    constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max();
    return {key.pointer(b, begin, g, 0), value.pointer(b, begin, g, 0), far, -far, 1};
  }
};

TEST(AnyKv, NoStrideOfASingleRowLeadsOutOfTheAddressSpace) {
  const mha::Tensor<float, 4> k(1, 3, 1, 4);
  const OneByOne kv{{k.view(), k.view()}};
  const auto run = AnyKv<float>(kv).run(0, 0, 1, 3);
  EXPECT_EQ(run.key, &k(0, 1, 0, 0));
  EXPECT_EQ(run.count, 1);
  EXPECT_EQ(run.key_stride, 0);
  EXPECT_EQ(run.value_stride, 0);
}

/// One that keeps tiles.
struct Tiled : mha::ContiguousKv<float> {
  const mha::bfloat16* tiles;
  mha::detail::ValueTiles value_tiles(Index b, Index g, Index k) const { return {tiles + b + g + k, 7, true}; }
};

TEST(AnyKv, HasTheTilesThatTheSourceKeeps) {
  const mha::Tensor<float, 4> k(2, 40, 3, 4);
  const mha::Tensor<mha::bfloat16, 1> tiles(100);
  const mha::ContiguousKv<float> rows{k.view(), k.view()};
  const Tiled kept{rows, tiles.data()};
  const AnyKv<float> any(kept);
  EXPECT_TRUE(any.keeps_values());
  EXPECT_EQ(any.value_tiles(1, 2, 64).tiles, tiles.data() + 67);
  EXPECT_EQ(any.value_tiles(1, 2, 64).stride, 7);
  EXPECT_TRUE(any.value_tiles(1, 2, 64).non_finite);
  const AnyKv<float> other(rows);
  EXPECT_FALSE(other.keeps_values());
  EXPECT_EQ(other.value_tiles(1, 2, 64).tiles, nullptr);
}

TEST(AnyKv, TellsHeldPositionsFromDroppedOnes) {
  const mha::Tensor<float, 4> k(1, 40, 1, 4);
  const Holes kv{{k.view(), k.view()}};
  static_assert(mha::KvSource<Holes> && mha::DropsKeys<Holes> && !mha::DropsKeys<mha::ContiguousKv<float>>);
  const AnyKv<float> any(kv);
  EXPECT_TRUE(any.drops());
  for (Index end = 1; end <= 40; ++end)
    for (Index begin = 0; begin < end; ++begin) {
      Index first = begin;
      while (first < end && !Holes::there(first)) ++first;
      EXPECT_EQ(any.held(0, begin, end), first) << begin << " to " << end;
      if (first != begin) continue;
      Index stop = begin;
      while (stop < end && Holes::there(stop)) ++stop;
      EXPECT_EQ(any.held_end(0, begin, end), stop) << begin << " to " << end;
    }
}

}  // namespace
