// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gtest/gtest.h>

#include <mha/policy/mask/positional.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::Causal;
using mha::CausalTopLeft;
using mha::Full;
using mha::SlidingWindow;
using mha::TileVisibility;
using mha_test::Promise;
using mha_test::tiles_are;

constexpr int most = std::numeric_limits<int>::max();

/// A promise kept by every small call; prepared() is what a kernel gets.
template <class M> void expect_exact_tiles(const M& mask) {
  mha_test::for_each_small_call([&](const mha::CallShape& s) {
    EXPECT_TRUE(tiles_are(Promise::exact, mha::prepared(mask, s), s))
        << s.queries << " queries at " << s.origin[0] << ", " << s.keys << " keys";
  });
}

TEST(Full, ShowsEverything) {
  for (int q = -3; q < 5; ++q)
    for (int k = 0; k < 5; ++k) EXPECT_TRUE(Full{}(0, 0, q, k));
  expect_exact_tiles(Full{});
}

TEST(Causal, HidesFutureKeys) {
  for (int q = -3; q < 6; ++q)
    for (int k = 0; k < 6; ++k) EXPECT_EQ(Causal{}(0, 0, q, k), k <= q);
}

TEST(Causal, ClassifiesEveryTileExactly) { expect_exact_tiles(Causal{}); }

TEST(Causal, IsTheSameForEverySequenceAndHead) { EXPECT_EQ(Causal{}(3, 7, 2, 2), Causal{}(0, 0, 2, 2)); }

TEST(CausalTopLeft, StartsAtTheFirstKeyWhateverTheOrigin) {
  for (const int origin : {-4, 0, 3}) {
    const auto mask = CausalTopLeft{}.prepared({.queries = 4, .keys = 5, .origin = origin});
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(0, 0, origin + i, k), k <= i) << origin;
  }
}

TEST(CausalTopLeft, StartsEverySequenceOfARaggedBatchAtItsFirstKey) {
  const int origins[3] = {-2, 0, 4};
  const mha::CallShape s{.batch = 3, .heads = 1, .queries = 4, .keys = 5, .origin = mha::Origins(origins)};
  const auto mask = CausalTopLeft{}.prepared(s);
  for (int b = 0; b < 3; ++b)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(b, 0, origins[b] + i, k), k <= i);
  EXPECT_TRUE(tiles_are(Promise::exact, mask, s));
}

TEST(CausalTopLeft, ClassifiesEveryTileExactly) { expect_exact_tiles(CausalTopLeft{}); }

TEST(CausalTopLeft, EqualsCausalWhenTheCallStartsAtZero) {
  const auto mask = CausalTopLeft{}.prepared({.queries = 5, .keys = 5, .origin = 0});
  for (int q = 0; q < 5; ++q)
    for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(0, 0, q, k), Causal{}(0, 0, q, k));
}

TEST(SlidingWindow, ReachesInclusivelyToBothSides) {
  for (int left = 0; left < 4; ++left)
    for (int right = 0; right < 4; ++right)
      for (int q = -3; q < 6; ++q)
        for (int k = 0; k < 6; ++k)
          EXPECT_EQ((SlidingWindow{.left = left, .right = right}(0, 0, q, k)), q - left <= k && k <= q + right)
              << left << ' ' << right << ' ' << q << ' ' << k;
}

TEST(SlidingWindow, LooksNotAheadUnlessAsked) {
  const SlidingWindow mask{.left = 2};
  EXPECT_EQ(mask.right, 0);
  int visible = 0;
  for (int k = 0; k < 10; ++k) visible += mask(0, 0, 5, k) ? 1 : 0;
  EXPECT_EQ(visible, 3);
}

TEST(SlidingWindow, ClassifiesEveryTileExactly) {
  for (int left = 0; left < 4; ++left)
    for (int right = 0; right < 3; ++right) expect_exact_tiles(SlidingWindow{.left = left, .right = right});
}

TEST(SlidingWindow, ReachesEverythingWithoutOverflow) {
  const SlidingWindow everything{.left = most, .right = most}, causal{.left = most};
  for (const int q : {-most / 2, -1, 0, 7, most / 2})
    for (const int k : {0, 1, 100, most / 2}) {
      EXPECT_TRUE(everything(0, 0, q, k));
      EXPECT_EQ(causal(0, 0, q, k), k <= q) << q << ' ' << k;
    }
  EXPECT_EQ(everything.tile(0, 0, 0, 64, 0, 64), TileVisibility::full);
  EXPECT_EQ(everything.tile(0, 0, most / 2 - 64, most / 2, 0, most), TileVisibility::full);
  EXPECT_EQ(causal.tile(0, 0, most / 2 - 64, most / 2, 0, 64), TileVisibility::full);
  EXPECT_EQ(causal.tile(0, 0, -most / 2, 0, 0, 64), TileVisibility::none);
  EXPECT_EQ((SlidingWindow{.left = 0, .right = most}.tile(0, 0, most / 2 - 2, most / 2, 0, 64)), TileVisibility::none);
  expect_exact_tiles(everything);
  expect_exact_tiles(causal);
}

TEST(Causal, ClassifiesAtTheFarEnds) {
  EXPECT_EQ(Causal{}.tile(0, 0, most / 2 - 8, most / 2, 0, 64), TileVisibility::full);
  EXPECT_EQ(Causal{}.tile(0, 0, -most / 2, -most / 2 + 8, 0, most), TileVisibility::none);
  EXPECT_EQ(Causal{}.tile(0, 0, 0, most / 2, 0, most), TileVisibility::partial);
}

TEST(SlidingWindow, RefusesANegativeReach) {
  const mha::CallShape shape{.queries = 2, .keys = 2};
  const auto message = [&](int left, int right) {
    return mha_test::message_of<mha::ShapeError>([&] { SlidingWindow{.left = left, .right = right}.prepared(shape); });
  };
  EXPECT_EQ(message(-1, 0), "SlidingWindow: left is -1, it must be at least 0");
  EXPECT_EQ(message(0, -2), "SlidingWindow: right is -2, it must be at least 0");
  EXPECT_EQ(message(0, 0), "");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([] { static_cast<void>(SlidingWindow{.left = 1LL << 31}); }),
            "SlidingWindow: left is 2147483648, the largest is 2147483647");
}

TEST(SlidingWindow, HasNoDefaultReach) {
  static_assert(!std::is_default_constructible_v<SlidingWindow>);
  static_assert(std::is_trivially_copyable_v<SlidingWindow>);
}

TEST(PositionalMasks, AreMasksThatOwnTheirValues) {
  static_assert(mha::Mask<Full> && mha::Mask<Causal> && mha::Mask<CausalTopLeft> && mha::Mask<SlidingWindow>);
  static_assert(!mha::Borrows<Full> && !mha::Borrows<Causal> && !mha::Borrows<SlidingWindow>);
}

TEST(PositionalMasks, ClassifyInConstantExpressions) {
  static_assert(Causal{}.tile(0, 0, 8, 16, 0, 9) == TileVisibility::full);
  static_assert(Causal{}.tile(0, 0, 8, 16, 0, 10) == TileVisibility::partial);
  static_assert(Causal{}.tile(0, 0, 8, 16, 15, 20) == TileVisibility::partial);
  static_assert(Causal{}.tile(0, 0, 8, 16, 16, 20) == TileVisibility::none);
  static_assert(SlidingWindow{.left = 3}(0, 0, 8, 5) && !SlidingWindow{.left = 3}(0, 0, 8, 4));
}

}  // namespace
