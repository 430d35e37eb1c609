// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/hide_body.hpp>
#include <mha/backend/simd/tile_policies.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
using mha::TileVisibility;

constexpr Index batch = 2, heads = 3, queries = 53, keys = 77, origin = 5;

/// How a table lies in memory, which holds no byte more than it needs.
struct Layout {
  const char* name;
  std::array<std::ptrdiff_t, 4> stride;
  bool is_classified;
};
constexpr std::ptrdiff_t n = std::ptrdiff_t{queries} * keys;
constexpr Layout layouts[] = {{"(Lq, Lk)", {3 * n, n, keys, 1}, true},
                              {"(Lk, Lq)", {3 * n, n, 1, queries}, true},
                              {"one for all heads", {n, 0, keys, 1}, true},
                              {"(1, Lk)", {keys, 0, 0, 1}, true},
                              {"(Lq, 1)", {queries, 0, 1, 0}, true},
                              {"(1, 1)", {0, 1, 0, 0}, true},
                              {"(Lq, 1), every second", {0, 0, 2, 0}, true},
                              {"(Lq, Lk, 2)", {6 * n, 2 * n, 2 * keys, 2}, false},
                              {"(Lk, Lq, 3)", {3 * n, 1, 3, 3 * queries}, false},
                              {"rows overlap", {0, 0, 1, 1}, true}};

template <class X> class TableOf {
 public:
  /// f(b, h, i, k): the pair of row i; of pairs in one element that of the last.
  template <class F> TableOf(const Layout& layout, F&& f) : layout_(layout) {
    const Index extent[4] = {batch, heads, queries, keys};
    std::size_t size = 1;
    for (std::size_t a = 0; a < 4; ++a) size += static_cast<std::size_t>((extent[a] - 1) * layout.stride[a]);
    elements_ = std::make_unique<X[]>(size);
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i)
          for (Index k = 0; k < keys; ++k)
            elements_[static_cast<std::size_t>(b * layout.stride[0] + h * layout.stride[1] + i * layout.stride[2] +
                                               k * layout.stride[3])] = f(b, h, i, k);
  }
  mha::TensorView<const X, 4> view() const {
    const auto& s = layout_.stride;
    return {elements_.get(), {batch, heads, queries, keys}, {s[0], s[1], s[2], s[3]}};
  }
  mha::Dense mask() const requires(std::is_same_v<X, bool>) { return mha::Dense(view(), mha::Origins(origin)); }

 private:
  const Layout layout_;
  std::unique_ptr<X[]> elements_;
};
using Table = TableOf<bool>;

/// f(mask) for a table's mask alone, and for masks that contain it.
template <class F> void for_each_mask(const mha::Dense& table, F&& f) {
  const mha::Causal causal;
  const mha::SlidingWindow window{.left = 20};
  f(table);
  f(!table);
  f(!!table);
  f(causal && table);
  f(table && window);
  f(causal || table);
  f(table || window);
  f(!(window && !table) && causal);
}

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

TEST(HideBody, SaysOfATileWhatTheTableSaysOfItsPairs) {
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

TEST(HideBody, SaysNothingIsSeenWhereThereIsNoPair) {
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
  for (const Layout& layout : layouts) {
    std::vector<float> other(static_cast<std::size_t>(n));
    for (float& x : other) x = random.below(200) == 0 ? (random.chance(0.5) ? -1e4f : infinity) : -infinity;
    const TableOf<B> table(layout, [&](Index b, Index h, Index i, Index k) {
      return static_cast<B>((b + h + i / 20 + k / 30) % 2 == 0 ? other[static_cast<std::size_t>(i * keys + k)] : 1.f);
    });
    const mha::AdditiveBias<B> bias(table.view(), mha::Origins(origin));
    int hidden = 0;
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
    EXPECT_GT(hidden, 0) << layout.name;
  }
}

TEST(TableOfMinusInfinity, IsTheLastOfTheScores) {
  using Bias = mha::AdditiveBias<float>;
  using Capped = mha::Chain<mha::SoftCap, Bias>;
  using CappedBehind = mha::Chain<Bias, mha::SoftCap>;
  EXPECT_TRUE(simd::LastTable<Bias>::exists && simd::LastTable<Capped>::exists);
  EXPECT_FALSE(simd::LastTable<mha::SoftCap>::exists || simd::LastTable<CappedBehind>::exists);
  const Capped chain{mha::SoftCap{2}, Bias{}};
  EXPECT_EQ(&simd::LastTable<Capped>::of(chain), &chain.second);
}

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
