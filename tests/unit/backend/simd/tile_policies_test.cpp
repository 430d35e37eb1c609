// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/tile_policies.hpp>
#include <mha/policy/mask/first_keys.hpp>
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

constexpr Index lanes = 48, keys = 21;

/// Every third pair, and nothing beyond the call may be asked for.
struct Thirds {
  Index q_begin, q_end, k_begin, k_end;
  bool* beyond;
  bool operator()(Index b, Index h, Index q, Index k) const {
    if (q < q_begin || q >= q_end || k < k_begin || k >= k_end) *beyond = true;
    return (q + k + h + b) % 3 == 0;
  }
};

/// Different in every pair and sensitive to how its products are rounded.
struct Ripple {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return s * T(1.1) - T(0.37) * T(q) + T(0.11) * T(k) + T(b) - T(h) * T(0.3);
  }
};

template <class T> class TilePolicies : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(TilePolicies, Scalars);

template <class T> std::vector<T> random_tile(support::Random& random) {
  std::vector<T> s(std::size_t{lanes} * keys);
  random.fill(s);
  return s;
}

TYPED_TEST(TilePolicies, HidesWhatTheMaskHidesAndAsksForNoPairBeyondTheCall) {
  using T = TypeParam;
  support::Random random("hide");
  unit::for_each_level([&](auto isa) {
    for (const Index count : {1, 3, 16, 37, 48}) {
      const Index q_begin = 5, k_begin = 40;
      bool beyond = false;
      const Thirds mask{q_begin, q_begin + count, k_begin, k_begin + keys, &beyond};
      const simd::AnyMask<T> any(mask, isa.level);
      std::vector<T> s = random_tile<T>(random);
      const std::vector<T> before = s;
      any.hide({1, 2, q_begin, count}, s.data(), lanes, {k_begin, k_begin + keys, TileVisibility::partial}, 8);
      EXPECT_FALSE(beyond) << "a pair outside the call was asked for";
      for (Index k = 0; k < keys; ++k)
        for (Index i = 0; i < lanes; ++i) {
          const auto at = static_cast<std::size_t>(k * lanes + i);
          const bool seen = i >= count || mask(1, 2, q_begin + i, k_begin + k);
          EXPECT_EQ(support::bits(s[at]), support::bits(seen ? before[at] : -std::numeric_limits<T>::infinity()))
              << "query " << i << " of " << count << ", key " << k;
        }
    }
  });
}

TYPED_TEST(TilePolicies, ScoresAPairTheSameInEveryTile) {
  using T = TypeParam;
  support::Random random("score");
  const std::vector<T> dots = random_tile<T>(random);
  unit::for_each_level([&](auto isa) {
    const auto scored = [&](Index count, Index first) {
      const Ripple ripple;
      const simd::AnyScore<T> score(ripple, isa.level);
      std::vector<T> s = dots;
      score.apply({1, 2, 5 + first, count}, s.data() + first, lanes, T(0.7), 40, 40 + keys);
      return s;
    };
    const std::vector<T> all = scored(lanes, 0);
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < lanes; ++i) {
        const auto at = static_cast<std::size_t>(k * lanes + i);
        const double exact = Ripple{}(double(T(0.7)) * double(dots[at]), 1, 2, 5 + i, 40 + k);
        EXPECT_NEAR(double(all[at]), exact, 200 * support::unit_roundoff<T>());
      }
    for (const Index count : {1, 2, 17})
      for (const Index first : {0, 7, 30}) {
        const std::vector<T> some = scored(count, first);
        for (Index k = 0; k < keys; ++k)
          for (Index i = 0; i < lanes; ++i) {
            const auto at = static_cast<std::size_t>(k * lanes + i);
            const bool ours = i >= first && i < first + count;
            EXPECT_EQ(support::bits(some[at]), support::bits(ours ? all[at] : dots[at]))
                << "query " << i << " of [" << first << ", " << first + count << "), key " << k;
          }
      }
  });
}

/// The numbers of a table over (B, H, Lq, Lk) pairs, some of them −∞, and two of its axes in an order of its own.
template <class T, class B> struct Table {
  const char* name;
  std::array<std::ptrdiff_t, 4> stride;
  std::vector<B> numbers = std::vector<B>(std::size_t{2} * 3 * lanes * keys * 2, B(0));
  mha::AdditiveBias<B> score() const {
    const mha::TensorView<const B, 4> pairs{
        numbers.data(), {2, 3, lanes, keys}, {stride[0], stride[1], stride[2], stride[3]}};
    return mha::AdditiveBias<B>(pairs, mha::Origins(5));
  }
};

template <class T, class B> void adds_its_numbers_to_a_pair_the_same_in_every_tile() {
  support::Random random("table");
  std::vector<T> dots = random_tile<T>(random);
  dots[3] = std::numeric_limits<T>::quiet_NaN();
  constexpr std::ptrdiff_t n = std::ptrdiff_t{lanes} * keys;
  Table<T, B> tables[] = {{"(Lq, Lk)", {3 * n, n, keys, 1}},
                          {"(Lk, Lq)", {3 * n, n, 1, lanes}},
                          {"(Lq, Lk, 2)", {6 * n, 2 * n, 2 * keys, 2}},
                          {"(1, Lk)", {0, n, 0, 1}},
                          {"(Lq, 1)", {0, n, 1, 0}},
                          {"(Lk, Lq, 3)", {3 * n, 1, 3, 3 * lanes}}};
  for (Table<T, B>& table : tables) {
    std::vector<T> numbers(table.numbers.size());
    random.fill(numbers);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      table.numbers[i] = i % 11 == 0 ? B(-std::numeric_limits<float>::infinity()) : B(float(numbers[i]));
    const mha::AdditiveBias<B> bias = table.score();
    const mha::Chain chain{mha::SoftCap{3}, bias};
    unit::for_each_level([&](auto isa) {
      const auto in_tiles = [&](const auto& score, auto exact) {
        const simd::AnyScore<T> any(score, isa.level);
        const auto scored = [&](Index count, Index first) {
          std::vector<T> s = dots;
          any.apply({1, 2, 5 + first, count}, s.data() + first, lanes, T(0.7), 0, keys);
          return s;
        };
        const std::vector<T> all = scored(lanes, 0);
        std::vector<T> rows(dots.size());  // keys in lanes
        for (Index k = 0; k < keys; ++k)
          for (Index i = 0; i < lanes; ++i)
            rows[static_cast<std::size_t>(i * keys + k)] = dots[static_cast<std::size_t>(k * lanes + i)];
        any.apply({1, 2, 5, lanes}, rows.data(), 1, T(0.7), 0, keys, keys);
        for (Index k = 0; k < keys; ++k)
          for (Index i = 0; i < lanes; ++i) {
            const auto at = static_cast<std::size_t>(k * lanes + i);
            const double add = double(float(bias.bias(1, 2, i, k)));
            if (std::isinf(add))
              EXPECT_EQ(all[at], -std::numeric_limits<T>::infinity()) << table.name << i << ' ' << k;
            else if (std::isnan(dots[at]))
              EXPECT_TRUE(std::isnan(all[at]));
            else
              EXPECT_NEAR(double(all[at]), exact(double(T(0.7)) * double(dots[at])) + add,
                          20 * support::unit_roundoff<T>())
                  << table.name << i << ' ' << k;
            EXPECT_EQ(support::bits(rows[static_cast<std::size_t>(i * keys + k)]), support::bits(all[at]))
                << table.name;
          }
        for (const Index count : {1, 2, 17})
          for (const Index first : {0, 7, 30}) {
            const std::vector<T> some = scored(count, first);
            for (std::size_t at = 0; at < some.size(); ++at) {
              const Index i = static_cast<Index>(at) % lanes;
              const bool ours = i >= first && i < first + count;
              EXPECT_EQ(support::bits(some[at]), support::bits(ours ? all[at] : dots[at]))
                  << table.name << ", query " << i << " of [" << first << ", " << first + count << ")";
            }
          }
        // Keys from the middle on, as the next tile has them.
        std::vector<T> later(dots.begin() + 5 * lanes, dots.end());
        any.apply({1, 2, 5, lanes}, later.data(), lanes, T(0.7), 5, keys);
        EXPECT_TRUE(std::equal(later.begin(), later.end(), all.begin() + 5 * lanes, [](T a, T b) {
          return support::bits(a) == support::bits(b);
        })) << table.name;
      };
      in_tiles(bias, [](double s) { return s; });
      in_tiles(chain, [](double s) { return 3 * std::tanh(s / 3); });
    });
  }
}

TYPED_TEST(TilePolicies, ATableAddsItsNumbersToAPairTheSameInEveryTile) {
  adds_its_numbers_to_a_pair_the_same_in_every_tile<TypeParam, TypeParam>();
  adds_its_numbers_to_a_pair_the_same_in_every_tile<TypeParam, mha::bfloat16>();
  if constexpr (std::is_same_v<TypeParam, double>) adds_its_numbers_to_a_pair_the_same_in_every_tile<double, float>();
}

TYPED_TEST(TilePolicies, TrimsHiddenKeysInWholeGrains) {
  using T = TypeParam;
  const mha::SlidingWindow window{.left = 9};
  const simd::AnyMask<T> mask(window, mha::IsaLevel::baseline);
  const simd::TileQueries of{0, 0, 100, 4};
  const auto whole = mask.visible(of, 64, 128, 8);  // keys 91 … 103 are seen
  EXPECT_EQ(whole.begin, 88);
  EXPECT_EQ(whole.end, 104);
  EXPECT_EQ(whole.seen, TileVisibility::partial);
  EXPECT_EQ(mask.visible(of, 104, 128, 8).seen, TileVisibility::none);
  EXPECT_EQ(mask.visible(of, 95, 99, 8).seen, TileVisibility::full);
  EXPECT_EQ(mask.visibility(of, 0, 91), TileVisibility::none);
}

/// The pairs of a rectangle, but one; nothing beyond the call may be asked for.
struct AllButOne {
  Index q_begin, q_end, k_begin, k_end, q_one, k_one;
  bool others;
  bool* beyond;
  bool operator()(Index, Index, Index q, Index k) const {
    if (q < q_begin || q >= q_end || k < k_begin || k >= k_end) *beyond = true;
    return (q == q_one && k == k_one) != others;
  }
};

/// Hidden in one head, and the same as Causal in the others; it says nothing of tiles.
struct HeadOfItsOwn {
  Index head;
  bool operator()(Index, Index h, Index q, Index k) const { return h != head && k <= q; }
};

TYPED_TEST(TilePolicies, LooksAtEveryPairOfAMaskWithoutTile) {
  using T = TypeParam;
  unit::for_each_level([&](auto isa) {
    for (const Index count : {1, 3, 8, 16, 17, 37, 48})
      for (const Index n : {1, 5, 16, 21, 64, 127, 128}) {
        const Index q_begin = 5, k_begin = 40;
        for (Index pair = -1; pair < count * n; pair += pair < 0 ? 1 : 13)
          for (const bool others : {true, false}) {
            bool beyond = false;
            const Index q_one = pair < 0 ? -1 : q_begin + pair / n, k_one = k_begin + pair % n;
            const AllButOne mask{q_begin, q_begin + count, k_begin, k_begin + n, q_one, k_one, others, &beyond};
            const auto kernel = simd::PolicyKernel<T>::template of<simd::LookBody<T, AllButOne>>(isa.level);
            const TileVisibility seen = kernel.look(&mask, {0, 0, q_begin, count}, k_begin, k_begin + n);
            const TileVisibility same = others ? TileVisibility::full : TileVisibility::none;
            const TileVisibility one = others ? TileVisibility::none : TileVisibility::full;
            const TileVisibility expected = pair < 0 ? same : count * n == 1 ? one : TileVisibility::partial;
            ASSERT_EQ(seen, expected) << count << " queries, " << n << " keys, pair " << pair;
            ASSERT_FALSE(beyond) << "a pair outside the call was asked for";
          }
      }
  });
}

TYPED_TEST(TilePolicies, LooksAtEveryHeadAndAtMasksThatAreComposed) {
  using T = TypeParam;
  unit::for_each_level([&](auto isa) {
    const HeadOfItsOwn past{.head = 2};
    const simd::AnyMask<T> alone(past, isa.level);
    EXPECT_EQ(alone.visible({0, 1, 100, 48}, 0, 101, 8).seen, TileVisibility::full);
    EXPECT_EQ(alone.visible({0, 1, 100, 48}, 0, 102, 8).seen, TileVisibility::partial);
    EXPECT_EQ(alone.visible({0, 1, 100, 48}, 148, 256, 8).seen, TileVisibility::none);
    EXPECT_EQ(alone.visible({0, 2, 100, 48}, 0, 101, 8).seen, TileVisibility::none);
    EXPECT_EQ(alone.visible({0, 1, 100, 48}, 148, 300, 8).seen, TileVisibility::partial)
        << "many keys are not looked at";
    const simd::TileLanes heads{0, 0, 3, 0, 16, 100};  // heads 0, 1 and 2
    EXPECT_EQ(heads.visible(alone, 0, 101, 8).seen, TileVisibility::partial);
    EXPECT_EQ(heads.visible(alone, 116, 128, 8).seen, TileVisibility::none);

    const auto both = mha::SlidingWindow{.left = 9} && past;
    const simd::AnyMask<T> window(both, isa.level);
    EXPECT_EQ(window.visible({0, 1, 100, 4}, 64, 91, 8).seen, TileVisibility::none);
    const auto trimmed = window.visible({0, 1, 100, 4}, 64, 128, 8);
    EXPECT_EQ(trimmed.begin, 88) << "by the tile() of the window";
    EXPECT_EQ(trimmed.end, 104);
    EXPECT_EQ(window.visible({0, 2, 100, 16}, 64, 128, 8).seen, TileVisibility::none);
    EXPECT_EQ(window.visible({0, 2, 100, 1}, 64, 128, 8).seen, TileVisibility::partial)
        << "few pairs are not looked at";
    const auto either = mha::Not{past} || mha::FirstKeys{.count = 3};
    EXPECT_EQ(simd::AnyMask<T>(either, isa.level).visible({0, 1, 100, 48}, 3, 101, 8).seen, TileVisibility::none);
    EXPECT_EQ(simd::AnyMask<T>(either, isa.level).visible({0, 1, 100, 48}, 2, 101, 8).seen, TileVisibility::partial);
  });
}

TYPED_TEST(TilePolicies, SkipsATileWhereTheLastScoreIsATableOfMinusInfinity) {
  using T = TypeParam;
  using Bias = mha::AdditiveBias<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  mha::Tensor<T, 4> table(1, 1, 8, 256);
  for (Index i = 0; i < 8; ++i)
    for (Index k = 0; k < 256; ++k) table(0, 0, i, k) = k < 64 ? -infinity : T(0);
  mha::AttendCall<T, mha::ContiguousKv<T>, mha::Full, Bias> call{};
  call.score = Bias(table.view(), mha::Origins(5));
  const auto level = mha::IsaLevel::baseline;
  const simd::TileQueries of{0, 0, 5, 8};
  const auto any = simd::any_call(call, level);
  EXPECT_EQ(any.mask.visible(of, 0, 64, 8).seen, TileVisibility::none);
  EXPECT_EQ(any.mask.visible(of, 0, 65, 8).seen, TileVisibility::full);
  EXPECT_EQ(any.mask.visible(of, 64, 128, 8).seen, TileVisibility::full);
  // Neither what the mask hides nor many keys at once are read of a table.
  const Bias nowhere(mha::TensorView<const T, 4>{nullptr, {1, 1, 8, 256}, {0, 0, 256, 1}}, mha::Origins(5));
  const mha::CausalTopLeft past;
  EXPECT_EQ(simd::AnyMask<T>(past, level, nowhere).visible(of, 13, 64, 8).seen, TileVisibility::none);
  EXPECT_EQ(simd::AnyMask<T>(past, level, nowhere).visible(of, 0, 129, 8).seen, TileVisibility::partial);
}

// Neither has a kernel of its own.
TYPED_TEST(TilePolicies, FullHidesNothingAndNoScoreOnlyScales) {
  using T = TypeParam;
  support::Random random("none");
  const mha::Full full;
  const mha::NoScore none;
  const std::vector<T> dots = random_tile<T>(random);
  unit::for_each_level([&](auto isa) {
    const simd::AnyMask<T> mask(full, isa.level);
    const simd::AnyScore<T> score(none, isa.level);
    EXPECT_FALSE(score.exists);
    EXPECT_TRUE(simd::AnyScore<T>(Ripple{}, isa.level).exists);
    for (const Index count : {1, 7, 37}) {
      const auto seen = mask.visible({1, 2, 100, count}, 91, 91 + keys, 8);
      EXPECT_EQ(seen.begin, 91);
      EXPECT_EQ(seen.end, 91 + keys);
      EXPECT_EQ(seen.seen, TileVisibility::full);
      std::vector<T> s = dots;
      mask.hide({1, 2, 100, count}, s.data(), lanes, seen, 8);
      EXPECT_EQ(s, dots);
      score.apply({1, 2, 100, count}, s.data(), lanes, T(-1.7), 91, 91 + keys);
      for (Index k = 0; k < keys; ++k)
        for (Index i = 0; i < lanes; ++i) {
          const auto at = static_cast<std::size_t>(k * lanes + i);
          EXPECT_EQ(support::bits(s[at]), support::bits(i < count ? T(T(-1.7) * dots[at]) : dots[at])) << k << ' ' << i;
        }
      // With keys in lanes: `count` queries, 40 numbers apart.
      constexpr Index apart = 40, n = 21;
      std::vector<T> rows(static_cast<std::size_t>(count * apart));
      random.fill(rows);
      const std::vector<T> before = rows;
      score.apply({1, 2, 100, count}, rows.data(), 1, T(-1.7), 91, 91 + n, apart);
      for (Index i = 0; i < count; ++i)
        for (Index k = 0; k < apart; ++k) {
          const auto at = static_cast<std::size_t>(i * apart + k);
          EXPECT_EQ(support::bits(rows[at]), support::bits(k < n ? T(T(-1.7) * before[at]) : before[at])) << i << k;
        }
    }
  });
}

}  // namespace
