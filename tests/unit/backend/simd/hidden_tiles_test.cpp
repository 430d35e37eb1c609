// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/hidden_tiles.hpp>
#include <mha/policy/score/softcap.hpp>

#include "random.hpp"
#include "tables.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using mha::TileVisibility;
using unit::tables::batch, unit::tables::heads, unit::tables::queries, unit::tables::keys, unit::tables::origin;
using unit::tables::for_each_mask, unit::tables::Layout, unit::tables::layouts, unit::tables::n, unit::tables::Table,
    unit::tables::TableOf;

/// What a mask says of each pair of a rectangle.
template <class M>
TileVisibility visibility_of_pairs(const M& mask, const simd::TileQueries& of, Index begin, Index end) {
  bool any = false, all = true;
  for (Index q = of.begin; q < of.begin + of.count; ++q)
    for (Index k = begin; k < end; ++k) {
      const bool seen = mask(of.b, of.h, q, k);
      any = any || seen;
      all = all && seen;
    }
  return all ? TileVisibility::full : any ? TileVisibility::partial : TileVisibility::none;
}

TEST(HiddenTiles, SaysOfATileWhatTheTableSaysOfItsPairs) {
  support::Random random("tiles");
  for (const Layout& layout : layouts) {
    // Rectangles of one kind, with a few pairs of the other.
    std::vector<bool> odd(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = random.below(200) == 0;
    const Table table(layout, [&](Index b, Index h, Index i, Index k) {
      return ((b + h + i / 20 + k / 30) % 2 == 0) != odd[static_cast<std::size_t>(i * keys + k)];
    });
    const mha::Dense mask = table.mask();
    int uniform = 0;
    for (int r = 0; r < 3000; ++r) {
      const Index first = random.below(queries), begin = random.below(keys);
      const Index count = 1 + random.below(std::min(queries - first, 12));
      const Index end = begin + 1 + random.below(std::min(keys - begin, 12));
      const simd::TileQueries of{random.below(batch), random.below(heads), origin + first, count};
      const TileVisibility exact = visibility_of_pairs(mask, of, begin, end);
      const TileVisibility said = simd::tile_on_host(mask, of, begin, end);
      uniform += exact != TileVisibility::partial;
      if (layout.is_classified) {
        EXPECT_EQ(said, exact) << layout.name << first << ' ' << count << ' ' << begin << ' ' << end;
      }
      for_each_mask(mask, [&](const auto& composed) {
        const TileVisibility answer = simd::tile_on_host(composed, of, begin, end);
        if (answer != TileVisibility::partial) {
          EXPECT_EQ(answer, visibility_of_pairs(composed, of, begin, end)) << layout.name;
        }
      });
      if (exact != TileVisibility::partial && layout.is_classified) {
        const TileVisibility other = exact == TileVisibility::full ? TileVisibility::none : TileVisibility::full;
        EXPECT_EQ(simd::tile_on_host(!mask, of, begin, end), other) << layout.name;
        EXPECT_EQ(simd::tile_on_host(mask && mha::Full{}, of, begin, end), exact) << layout.name;
        EXPECT_EQ(simd::tile_on_host(!mha::Full{} || mask, of, begin, end), exact) << layout.name;
      }
    }
    EXPECT_GT(uniform, 0) << layout.name;
  }
}

TEST(HiddenTiles, SaysNothingIsSeenWhereThereIsNoPair) {
  const Table table(layouts[0], [](Index, Index, Index, Index) { return true; });
  EXPECT_EQ(simd::tile_on_host(table.mask(), {0, 0, origin, 0}, 0, 8), TileVisibility::none);
  EXPECT_EQ(simd::tile_on_host(table.mask(), {0, 0, origin, 4}, 8, 8), TileVisibility::none);
}

template <class B> class TableOfNumbers : public testing::Test {};
using Numbers = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(TableOfNumbers, Numbers);

TYPED_TEST(TableOfNumbers, HidesARectangleWhereAllOfItsNumbersAreMinusInfinity) {
  using B = TypeParam;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  support::Random random("numbers");
  int hidden = 0;
  for (const Layout& layout : layouts) {
    std::vector<float> other(static_cast<std::size_t>(n));
    for (float& x : other) x = random.below(200) == 0 ? (random.chance(0.5) ? -1e4f : infinity) : -infinity;
    const TableOf<B> table(layout, [&](Index b, Index h, Index i, Index k) {
      return static_cast<B>((b + h + i / 20 + k / 30) % 2 == 0 ? other[static_cast<std::size_t>(i * keys + k)] : 1.f);
    });
    const mha::AdditiveBias<B> bias(table.view(), mha::Origins(origin));
    for (int r = 0; r < 3000; ++r) {
      const Index first = random.below(queries), begin = random.below(keys);
      const Index count = 1 + random.below(std::min(queries - first, 12));
      const Index end = begin + 1 + random.below(std::min(keys - begin, 12));
      const simd::TileQueries of{random.below(batch), random.below(heads), origin + first, count};
      bool all = true;
      for (Index q = of.begin; q < of.begin + count; ++q)
        for (Index k = begin; k < end; ++k)
          all = all && std::isinf(bias(1., of.b, of.h, q, k)) && bias(1., of.b, of.h, q, k) < 0;
      hidden += all;
      EXPECT_EQ(simd::hides_all(bias, of, begin, end), all)
          << layout.name << first << ' ' << count << ' ' << begin << ' ' << end;
    }
  }
  EXPECT_GT(hidden, 0);
}

TEST(TableOfMinusInfinity, IsTheLastOfTheScores) {
  using Bias = mha::AdditiveBias<float>;
  using Capped = mha::Chain<mha::SoftCap, Bias>;
  using CappedBehind = mha::Chain<Bias, mha::SoftCap>;
  EXPECT_TRUE(simd::LastTable<Bias>::exists && simd::LastTable<Capped>::exists);
  EXPECT_FALSE(simd::LastTable<mha::SoftCap>::exists || simd::LastTable<CappedBehind>::exists);
  EXPECT_FALSE(simd::LastTable<mha::AdditiveBias<int>>::exists) << "no integer is infinite";
  const Capped chain{mha::SoftCap{2}, Bias{}};
  EXPECT_EQ(&simd::LastTable<Capped>::of(chain), &chain.second);
}

}  // namespace
