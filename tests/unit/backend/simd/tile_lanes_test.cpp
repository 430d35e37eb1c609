// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/tile_lanes.hpp>
#include <mha/backend/simd/tile_policies.hpp>

#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using mha::TileVisibility;
using mha::detail::simd::TileLanes;

constexpr Index lanes = 32, keys = 37;
constexpr float hidden = -std::numeric_limits<float>::infinity();

/// Head h sees keys [10·h, 10·h + 15) but for every third.
struct Bands {
  bool operator()(Index, Index h, Index q, Index k) const { return k >= 10 * h && k < 10 * h + 15 && (q + k) % 3 != 0; }
  TileVisibility tile(Index, Index h, Index, Index, Index begin, Index end) const {
    return end <= 10 * h || begin >= 10 * h + 15 ? TileVisibility::none : TileVisibility::partial;
  }
};
/// All keys for even heads, none for odd ones.
struct EvenHeads {
  bool operator()(Index, Index h, Index, Index) const { return h % 2 == 0; }
  TileVisibility tile(Index, Index h, Index, Index, Index, Index) const {
    return h % 2 == 0 ? TileVisibility::full : TileVisibility::none;
  }
};
struct Ripple {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return s * T(1.1) - T(0.37) * T(q) + T(0.11) * T(k) + T(b) - T(h) * T(0.3);
  }
};

TEST(TileLanes, AreShared) {
  for (const auto& [ratio, rows, wide, expected] : {std::tuple<Index, Index, Index, Index>{4, 1, 48, 4},
                                                    {32, 1, 48, 32},
                                                    {64, 1, 48, 32},
                                                    {6, 10, 48, 3},
                                                    {6, 12, 48, 3},
                                                    {4, 16, 48, 2},
                                                    {4, 24, 48, 2},
                                                    {4, 25, 48, 1},
                                                    {4, 400, 48, 1},
                                                    {1, 1, 48, 1},
                                                    {4, 0, 48, 4}})
    EXPECT_EQ(TileLanes::heads_together(ratio, rows, wide), expected) << ratio << " heads of " << rows << " rows";
  EXPECT_EQ(TileLanes::most_heads(6, 10, 48), 4);
  EXPECT_EQ(TileLanes::most_heads(6, 49, 48), 1);
}

TEST(TileLanes, AreQueriesOfEveryHead) {
  const TileLanes of{0, 6, 3, 2, 5, 9};
  EXPECT_EQ(of.count(), 15);
  EXPECT_EQ(of.head_of(0), 6);
  EXPECT_EQ(of.row_of(4), 6);
  EXPECT_EQ(of.head_of(14), 8);
  EXPECT_EQ(of.row_of(10), 2);
  Index next = 0;
  of.for_each([&](Index h, Index i, Index lane) {
    EXPECT_EQ(lane, next++);
    EXPECT_EQ(h, 6 + lane / 5);
    EXPECT_EQ(i, 2 + lane % 5);
  });
  EXPECT_EQ(next, 15);
  const simd::TileQueries queries = of.of(2);
  EXPECT_EQ(queries.b, 0);
  EXPECT_EQ(queries.h, 8);
  EXPECT_EQ(queries.begin, 9);
  EXPECT_EQ(queries.count, 5);
}

/// The logits of every head as a tile of its own would have them.
TEST(TileLanes, HideAndScoreEachHeadByItself) {
  support::Random random("tile lanes");
  const mha::IsaLevel level = mha::current_isa();
  const Bands bands;
  const Ripple ripple;
  const simd::AnyMask<float> mask(bands, level);
  for (const TileLanes of : {TileLanes{1, 0, 4, 0, 1, 20}, TileLanes{1, 1, 3, 0, 7, 20}, TileLanes{1, 2, 1, 16, 32, 36},
                             TileLanes{1, 0, 2, 0, 16, 0}}) {
    std::vector<float> s(std::size_t{lanes} * keys);
    random.fill(s);
    std::vector<float> want = s;
    for (const bool scored : {true, false}) {
      const auto apply = [&](const auto& score) {
        of.apply(score, s.data(), lanes, 0.5f, 3, 3 + keys);
        for (Index lane = 0; lane < of.count(); ++lane)
          score.apply({1, of.head_of(lane), of.position + lane % of.rows, 1}, want.data() + lane, lanes, 0.5f, 3,
                      3 + keys);
      };
      if (scored)
        apply(simd::AnyScore<float>(ripple, level));
      else
        apply(simd::AnyScore<float>(mha::NoScore{}, level));
      EXPECT_TRUE(std::equal(s.begin(), s.end(), want.begin())) << "scores of " << of.heads << " heads";
    }
    of.hide(mask, s.data(), lanes, {3, 3 + keys, TileVisibility::partial}, 8);
    for (Index k = 0; k < keys; ++k)
      for (Index lane = 0; lane < lanes; ++lane) {
        const auto i = static_cast<std::size_t>(k * lanes + lane);
        const bool sees = lane >= of.count() || bands(1, of.head_of(lane), of.position + lane % of.rows, 3 + k);
        ASSERT_EQ(s[i], sees ? want[i] : hidden) << "key " << 3 + k << ", lane " << lane;
      }
  }
}

TEST(TileLanes, SeeWhatAnyOfThemSees) {
  const mha::IsaLevel level = mha::current_isa();
  const Bands bands;
  const EvenHeads even;
  const simd::AnyMask<float> mask(bands, level), by_head(even, level);
  for (Index heads = 1; heads <= 4; ++heads)
    for (Index head = 0; head < 4; ++head)
      for (Index begin = 0; begin < 80; begin += 16) {
        const TileLanes of{0, head, heads, 0, 2, 5};
        const simd::KeyRange seen = of.visible(mask, begin, begin + 32, 8);
        bool any = false;
        for (Index k = begin; k < begin + 32; ++k)
          for (Index lane = 0; lane < of.count(); ++lane)
            if (bands(0, of.head_of(lane), 5 + lane % 2, k)) {
              any = true;
              EXPECT_GE(k, seen.begin);
              EXPECT_LT(k, seen.end);
            }
        EXPECT_EQ(seen.seen == TileVisibility::none, !any);
        EXPECT_EQ(of.visibility(mask, begin, begin + 32) == TileVisibility::none, !any);
        if (heads == 1 && any) {
          EXPECT_GE(seen.begin, begin + std::max<Index>(0, (10 * head - begin) / 8 * 8));
        }
        const TileVisibility both = heads > 1       ? TileVisibility::partial
                                    : head % 2 == 0 ? TileVisibility::full
                                                    : TileVisibility::none;
        EXPECT_EQ(of.visible(by_head, begin, begin + 32, 8).seen, both);
        EXPECT_EQ(of.visibility(by_head, begin, begin + 32), both);
      }
}

/// Keys in lanes: each query a row of s, `apart` after the one before.
TEST(TileLanes, HideAndScoreKeysInLanesAlike) {
  support::Random random("keys in lanes");
  const mha::IsaLevel level = mha::current_isa();
  const Bands bands;
  const Ripple ripple;
  const simd::AnyMask<float> mask(bands, level);
  constexpr Index apart = keys + 3;
  for (const TileLanes of : {TileLanes{1, 0, 4, 0, 1, 20}, TileLanes{1, 1, 3, 0, 7, 20}}) {
    std::vector<float> s(std::size_t{lanes} * keys), rows(std::size_t{lanes} * apart);
    random.fill(s);
    for (Index k = 0; k < keys; ++k)
      for (Index lane = 0; lane < lanes; ++lane)
        rows[static_cast<std::size_t>(lane * apart + k)] = s[static_cast<std::size_t>(k * lanes + lane)];
    const simd::AnyScore<float> scored(ripple, level), scaled(mha::NoScore{}, level);
    for (const simd::AnyScore<float>* score : {&scored, &scaled}) {
      of.apply(*score, s.data(), lanes, 0.5f, 3, 3 + keys);
      of.apply(*score, rows.data(), 1, 0.5f, 3, 3 + keys, apart);
    }
    const simd::KeyRange range{3, 3 + keys, TileVisibility::partial};
    of.hide(mask, s.data(), lanes, range, 8);
    of.hide(mask, rows.data(), 1, range, 8, apart);
    for (Index k = 0; k < keys; ++k)
      for (Index lane = 0; lane < lanes; ++lane)
        ASSERT_EQ(rows[static_cast<std::size_t>(lane * apart + k)], s[static_cast<std::size_t>(k * lanes + lane)])
            << "key " << 3 + k << ", lane " << lane;
  }
}

TEST(TileLanes, RunsHaveOneStride) {
  const std::ptrdiff_t strides[] = {1000, 100, 10, 1};
  const auto runs = [&](const TileLanes& of) {
    std::vector<std::tuple<Index, Index, std::ptrdiff_t>> all;
    of.for_each_run(strides, [&](Index h, Index i, Index lane, Index count, std::ptrdiff_t stride) {
      EXPECT_EQ(h, of.head_of(lane));
      EXPECT_EQ(i, of.row_of(lane));
      all.emplace_back(lane, count, stride);
    });
    return all;
  };
  using Runs = std::vector<std::tuple<Index, Index, std::ptrdiff_t>>;
  EXPECT_EQ(runs({0, 4, 4, 0, 1, 0}), (Runs{{0, 4, 10}}));
  EXPECT_EQ(runs({0, 4, 2, 0, 3, 0}), (Runs{{0, 3, 100}, {3, 3, 100}}));
  const auto registers = [&](const TileLanes& of) {
    Runs all;
    of.for_each_register(strides, 4, [&](Index h, Index i, Index lane, Index count, std::ptrdiff_t stride) {
      EXPECT_EQ(h, of.head_of(lane));
      EXPECT_EQ(i, of.row_of(lane));
      all.emplace_back(lane, count, stride);
    });
    return all;
  };
  EXPECT_EQ(registers({0, 2, 2, 5, 6, 5}), (Runs{{0, 4, 100}, {2, 4, 100}, {6, 4, 100}, {8, 4, 100}}));
  EXPECT_EQ(registers({0, 2, 5, 3, 1, 3}), (Runs{{0, 4, 10}, {1, 4, 10}}));
  EXPECT_EQ(registers({0, 2, 1, 3, 8, 3}), (Runs{{0, 4, 100}, {4, 4, 100}}));
  EXPECT_EQ(registers({0, 2, 1, 3, 3, 3}), (Runs{{0, 1, 100}, {1, 1, 100}, {2, 1, 100}}));
}

}  // namespace
