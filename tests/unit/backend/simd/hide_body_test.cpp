// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/hide_body.hpp>
#include <mha/backend/simd/tile_policies.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"
#include "tables.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using mha::TileVisibility;

using unit::tables::batch, unit::tables::heads, unit::tables::queries, unit::tables::keys, unit::tables::origin;
using unit::tables::for_each_mask, unit::tables::Layout, unit::tables::layouts, unit::tables::n, unit::tables::Table;

template <class T> class HideBodyOf : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(HideBodyOf, Scalars);

TYPED_TEST(HideBodyOf, HidesWhatATableHidesWhateverItsStrides) {
  using T = TypeParam;
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  support::Random random("tables");
  std::vector<T> dots(static_cast<std::size_t>(n));  // (keys, queries)
  random.fill(dots);
  for (std::size_t i = 0; i < dots.size(); i += 7) dots[i] = std::numeric_limits<T>::quiet_NaN();
  for (const Layout& layout : layouts) {
    const Table table(layout, [&](Index, Index, Index, Index) { return random.below(3) != 0; });
    unit::for_each_level([&](auto isa) {
      for_each_mask(table.mask(), [&](const auto& mask) {
        const simd::AnyMask<T> any(mask, isa.level);
        for (const Index count : {1, 4, 16, 37, 53})
          for (const Index begin : {0, 9}) {
            const Index end = count == 37 ? begin + 33 : keys, first = count == 16 ? 3 : 0;
            const simd::TileQueries of{1, 2, origin + first, count};
            const auto expected = [&](Index k, Index i) {
              const T dot = dots[static_cast<std::size_t>(k * queries + i)];
              const bool ours = i >= first && i < first + count && k >= begin && k < end;
              return support::bits(!ours || mask(1, 2, origin + i, k) ? dot : hidden);
            };
            std::vector<T> s = dots, rows(dots.size());
            for (Index k = 0; k < keys; ++k)
              for (Index i = 0; i < queries; ++i)
                rows[static_cast<std::size_t>(i * keys + k)] = dots[static_cast<std::size_t>(k * queries + i)];
            any.hide(of, s.data() + begin * queries + first, queries, {begin, end, TileVisibility::partial}, 8);
            any.hide(of, rows.data() + first * keys + begin, 1, {begin, end, TileVisibility::partial}, 8, keys);
            int wrong = 0, wrong_rows = 0;
            for (Index k = 0; k < keys; ++k)
              for (Index i = 0; i < queries; ++i) {
                wrong += support::bits(s[static_cast<std::size_t>(k * queries + i)]) != expected(k, i);
                wrong_rows += support::bits(rows[static_cast<std::size_t>(i * keys + k)]) != expected(k, i);
              }
            EXPECT_EQ(wrong, 0) << layout.name << ", " << count << " queries, keys from " << begin;
            EXPECT_EQ(wrong_rows, 0) << layout.name << ", keys in lanes, " << count << " queries, keys from " << begin;
          }
      });
    });
  }
}

}  // namespace
