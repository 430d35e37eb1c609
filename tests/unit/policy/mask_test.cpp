// SPDX-License-Identifier: Apache-2.0
#include <concepts>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>

#include "message_of.hpp"
#include "tiles.hpp"

namespace {

using mha::And;
using mha::Causal;
using mha::CausalTopLeft;
using mha::Not;
using mha::Or;
using mha::SlidingWindow;
using mha::TileVisibility;
using mha_test::Promise;

/// Says one thing of every tile, and shows what goes with it.
struct Says {
  TileVisibility what;
  bool operator()(int, int, int, int) const { return what == TileVisibility::full; }
  TileVisibility tile(int, int, int, int, int, int) const { return what; }
};
constexpr TileVisibility none = TileVisibility::none, partial = TileVisibility::partial, full = TileVisibility::full;

template <class M> TileVisibility tile_of(const M& mask) { return mha::tile(mask, 0, 0, 0, 4, 0, 4); }

/// Written without a tile member.
struct Even {
  bool operator()(int, int, int q, int k) const { return (q + k) % 2 == 0; }
};

/// prepared() gives another type: what the call looks like is only known then.
struct NeedsTheCall {
  static constexpr mha::Role role = mha::Role::mask;
  struct Ready {
    int keys;
    bool operator()(int, int, int, int k) const { return k == keys - 1; }
  };
  bool operator()(int, int, int, int) const { return false; }
  Ready prepared(const mha::CallShape& s) const { return {s.keys}; }
};

TEST(Tile, IsPartialForAMaskWithoutAnOpinion) {
  EXPECT_EQ(tile_of(Even{}), partial);
  EXPECT_EQ(tile_of(mha::mask([](int, int, int, int) { return true; })), partial);
  EXPECT_EQ(tile_of(Says{full}), full);
}

TEST(Tile, OfAMaskThatIsInheritedFromIsAskedForItsOwnPairsAlone) {
  struct Near : Causal {
    bool operator()(int b, int h, int q, int k) const { return Causal::operator()(b, h, q, k) && q - k < 2; }
  };
  struct Named : Causal {};
  struct Own : Near {
    TileVisibility tile(int, int, int, int, int, int) const { return none; }
  };
  EXPECT_EQ(mha::tile(Causal{}, 0, 0, 8, 12, 0, 4), full);
  EXPECT_EQ(mha::tile(Near{}, 0, 0, 8, 12, 0, 4), partial);
  EXPECT_EQ(mha::tile(And{Near{}, Causal{}}, 0, 0, 8, 12, 0, 4), partial);
  EXPECT_EQ(mha::tile(Named{}, 0, 0, 8, 12, 0, 4), full);
  EXPECT_EQ(mha::tile(Own{}, 0, 0, 8, 12, 0, 4), none);
}

/// What classifies tiles for any mask is no mask itself.
template <class M> struct ByCorners {
  TileVisibility tile(int b, int h, int q_begin, int, int k_begin, int) const {
    return static_cast<const M&>(*this)(b, h, q_begin, k_begin) ? full : none;
  }
};
TEST(Tile, OfWhatIsNoMaskIsInherited) {
  struct Past : ByCorners<Past> {
    bool operator()(int, int, int q, int k) const { return k <= q; }
  };
  EXPECT_EQ(mha::tile(Past{}, 0, 0, 8, 12, 0, 4), full);
  EXPECT_EQ(mha::tile(Past{}, 0, 0, 0, 4, 8, 12), none);
}

TEST(Prepared, OfWhatIsInheritedWithItsOperator) {
  struct Wide : SlidingWindow {};
  const auto ready = mha::prepared(Wide{{.left = 3}}, mha::CallShape{});
  EXPECT_TRUE(ready(0, 0, 5, 2) && !ready(0, 0, 5, 1));
  struct Own : SlidingWindow {
    bool operator()(int b, int h, int q, int k) const { return q != 5 && SlidingWindow::operator()(b, h, q, k); }
    Own prepared(const mha::CallShape&) const { return *this; }
  };
  EXPECT_FALSE(mha::prepared(Own{{.left = 3}}, mha::CallShape{})(0, 0, 5, 2));
}

TEST(Prepared, IsThePolicyItselfUnlessItAsksForTheCall) {
  const mha::CallShape s{.keys = 9};
  static_assert(std::same_as<decltype(mha::prepared(Even{}, s)), Even>);
  static_assert(std::same_as<decltype(mha::prepared(NeedsTheCall{}, s)), NeedsTheCall::Ready>);
  EXPECT_TRUE(mha::prepared(NeedsTheCall{}, s)(0, 0, 0, 8));
}

TEST(And, ShowsWhatBothShow) {
  const And both{Causal{}, Even{}};
  for (int q = -2; q < 4; ++q)
    for (int k = 0; k < 4; ++k) EXPECT_EQ(both(0, 0, q, k), Causal{}(0, 0, q, k) && Even{}(0, 0, q, k));
}

TEST(Or, ShowsWhatEitherShows) {
  const Or either{Causal{}, Even{}};
  for (int q = -2; q < 4; ++q)
    for (int k = 0; k < 4; ++k) EXPECT_EQ(either(0, 0, q, k), Causal{}(0, 0, q, k) || Even{}(0, 0, q, k));
}

TEST(Not, ShowsWhatTheOtherHides) {
  const Not future{Causal{}};
  for (int q = -2; q < 4; ++q)
    for (int k = 0; k < 4; ++k) EXPECT_EQ(future(0, 0, q, k), k > q);
}

TEST(And, ClassifiesFromItsParts) {
  const TileVisibility expected[3][3] = {{none, none, none}, {none, partial, partial}, {none, partial, full}};
  for (const auto a : {none, partial, full})
    for (const auto b : {none, partial, full})
      EXPECT_EQ(tile_of(And{Says{a}, Says{b}}), expected[static_cast<int>(a)][static_cast<int>(b)]);
  EXPECT_EQ(tile_of(And{Says{none}, Even{}}), none);
  EXPECT_EQ(tile_of(And{Says{full}, Even{}}), partial);
}

TEST(Or, ClassifiesFromItsParts) {
  const TileVisibility expected[3][3] = {{none, partial, full}, {partial, partial, full}, {full, full, full}};
  for (const auto a : {none, partial, full})
    for (const auto b : {none, partial, full})
      EXPECT_EQ(tile_of(Or{Says{a}, Says{b}}), expected[static_cast<int>(a)][static_cast<int>(b)]);
  EXPECT_EQ(tile_of(Or{Says{full}, Even{}}), full);
  EXPECT_EQ(tile_of(Or{Says{none}, Even{}}), partial);
}

TEST(Not, ClassifiesFromItsPart) {
  EXPECT_EQ(tile_of(Not{Says{none}}), full);
  EXPECT_EQ(tile_of(Not{Says{partial}}), partial);
  EXPECT_EQ(tile_of(Not{Says{full}}), none);
  EXPECT_EQ(tile_of(Not{Even{}}), partial);
}

TEST(Composition, KeepsItsPromisesOnEveryTile) {
  const auto check = [](const auto& mask) {
    mha_test::for_each_small_call(
        [&](const mha::CallShape& s) { EXPECT_TRUE(mha_test::tiles_are(Promise::honest, mha::prepared(mask, s), s)); });
  };
  check(Causal{} && SlidingWindow{.left = 2, .right = 1});
  check(Causal{} || SlidingWindow{.left = 0, .right = 2});
  check(!(Causal{} && Even{}) || CausalTopLeft{});
  check(!CausalTopLeft{} && !SlidingWindow{.left = 1});
}

TEST(Composition, OfOneMaskIsAsExactAsTheMask) {
  const auto check = [](const auto& mask) {
    mha_test::for_each_small_call(
        [&](const mha::CallShape& s) { EXPECT_TRUE(mha_test::tiles_are(Promise::exact, mha::prepared(mask, s), s)); });
  };
  check(!Causal{});
  check(!!CausalTopLeft{});
  check(!SlidingWindow{.left = 1, .right = 1});
  check(Causal{} && mha::Full{});
  check(Causal{} || Causal{});
}

TEST(Operators, ComposeByType) {
  static_assert(std::same_as<decltype(Causal{} && Even{}), And<Causal, Even>>);
  static_assert(std::same_as<decltype(Causal{} || Even{}), Or<Causal, Even>>);
  static_assert(std::same_as<decltype(!Causal{}), Not<Causal>>);
  static_assert(std::same_as<decltype(!!Causal{}), Not<Not<Causal>>>);
  static_assert(std::same_as<decltype(Causal{} && Causal{} && Causal{}), And<And<Causal, Causal>, Causal>>);
  static_assert(std::same_as<decltype(And{Even{}, Even{}}), And<Even, Even>>);
  static_assert(mha::Mask<And<Even, Not<Or<Even, Causal>>>>);
}

TEST(Operators, NegateTwice) {
  const auto same = !!Causal{};
  for (int q = 0; q < 3; ++q)
    for (int k = 0; k < 3; ++k) EXPECT_EQ(same(0, 0, q, k), k <= q);
}

TEST(Prepared, ReachesEveryPartOfAComposition) {
  const mha::CallShape s{.queries = 3, .keys = 5, .origin = 2};
  const auto expect_top_left = [&](const auto& mask, bool shown) {
    const auto ready = mha::prepared(mask, s);
    for (int i = 0; i < 3; ++i)
      for (int k = 0; k < 5; ++k) EXPECT_EQ(ready(0, 0, s.origin[0] + i, k), (k <= i) == shown);
  };
  expect_top_left(CausalTopLeft{}, true);
  expect_top_left(!CausalTopLeft{}, false);
  expect_top_left(!!CausalTopLeft{}, true);
  expect_top_left(!!!CausalTopLeft{}, false);
  expect_top_left(Not<Not<Not<CausalTopLeft>>>{}, false);
  expect_top_left(CausalTopLeft{} && mha::Full{}, true);
  expect_top_left(mha::Full{} && CausalTopLeft{}, true);
  expect_top_left(CausalTopLeft{} || !mha::Full{}, true);
  expect_top_left(!mha::Full{} || CausalTopLeft{}, true);
  expect_top_left(!(!CausalTopLeft{} && !CausalTopLeft{}), true);
}

TEST(Prepared, MayChangeTheTypeOfAPart) {
  const mha::CallShape s{.keys = 4};
  const auto ready = mha::prepared(!Not{NeedsTheCall{}}, s);
  using Ready = NeedsTheCall::Ready;
  static_assert(std::same_as<decltype(ready), const Not<Not<Ready>>>);
  EXPECT_TRUE(ready(0, 0, 0, 3));
  EXPECT_FALSE(ready(0, 0, 0, 2));
  const auto both = mha::prepared(And{NeedsTheCall{}, Not{NeedsTheCall{}}}, s);
  static_assert(std::same_as<decltype(both), const And<Ready, Not<Ready>>>);
  EXPECT_FALSE(both(0, 0, 0, 3));
  EXPECT_TRUE(mha::prepared(Causal{} || NeedsTheCall{}, s)(0, 0, 0, 3));
}

TEST(Mask, FromALambdaKeepsItsValues) {
  int stride = 3;
  const auto strided = mha::mask([stride](int, int, int q, int k) { return k <= q && (q - k) % stride == 0; });
  static_assert(mha::Mask<decltype(strided)>);
  for (int k = 0; k < 8; ++k) EXPECT_EQ(strided(0, 0, 6, k), k == 0 || k == 3 || k == 6);
  const auto by_place = mha::mask([](auto b, auto h, auto q, auto k) { return b == 1 && h == 2 && q == 3 && k == 4; });
  EXPECT_TRUE(by_place(1, 2, 3, 4));
  EXPECT_FALSE(by_place(2, 1, 3, 4));
  EXPECT_FALSE((strided && by_place)(1, 2, 3, 4)) << "4 lies after 3";
  EXPECT_TRUE((strided || by_place)(1, 2, 3, 4));
}

bool first_half(int, int, int q, int k) { return 2 * k <= q; }

TEST(Mask, OfAPointerToAFunctionComposes) {
  const auto half = mha::mask(&first_half);
  static_assert(mha::Mask<decltype(half)>);
  EXPECT_TRUE(half(0, 0, 4, 2));
  EXPECT_FALSE((half && Causal{})(0, 0, 4, 3));
  EXPECT_TRUE((half && half)(0, 0, 4, 2));
  EXPECT_FALSE((!half)(0, 0, 4, 2));
  EXPECT_FALSE((half || half)(0, 0, 4, 3));
}

TEST(Prepared, RefusesANullFunctionInAnyPart) {
  using Pointer = bool (*)(int, int, int, int);
  using Function = std::function<bool(int, int, int, int)>;
  const auto message = [](const auto& mask) {
    return support::message_of([&] { static_cast<void>(mha::prepared(mask, mha::CallShape{})); });
  };
  const std::string refused = "mask: the function is null, expected one to call";
  EXPECT_EQ(message(Pointer{}), refused);
  EXPECT_EQ(message(mha::mask(Pointer{})), refused);
  EXPECT_EQ(message(mha::mask(Function())), refused);
  EXPECT_EQ(message(Causal{} && Function()), refused);
  EXPECT_EQ(message(Causal{} && !mha::mask(Function())), refused);
  EXPECT_EQ(message(Causal{} && Function(&first_half)), "");
}

TEST(CheckPolicy, AsksEveryPart) {
  const auto message = [](const auto& mask) {
    return support::message_of([&] { mha::detail::check_policy(mask, 2); });
  };
  const auto reach = mha::SlidingWindow{.left = -2};
  const std::string refused = "SlidingWindow: left is -2, it must be at least 0";
  EXPECT_EQ(message(reach), refused);
  EXPECT_EQ(message(Causal{} && reach), refused);
  EXPECT_EQ(message(reach || Causal{}), refused);
  EXPECT_EQ(message(mha::Full{} || !reach), refused);
  EXPECT_EQ(message(mha::mask(std::function<bool(int, int, int, int)>())),
            "mask: the function is null, expected one to call");
  EXPECT_EQ(message(Causal{} && (mha::SlidingWindow{.left = 2} || mha::Full{})), "");
}

/// A mask with a member of its own that is no check: it answers.
struct EveryOther {
  static constexpr mha::Role role = mha::Role::mask;
  bool operator()(mha::Index, mha::Index, mha::Index q, mha::Index k) const { return check(q - k); }
  [[nodiscard]] bool check(mha::Index apart) const { return ++*asked, apart % 2 == 0; }
  int* asked;
};
TEST(CheckPolicy, CallsNothingThatGivesAnAnswer) {
  int asked = 0;
  mha::detail::check_policy(Causal{} && EveryOther{&asked}, 2);
  EXPECT_EQ(asked, 0);
}

TEST(Composition, PassesSequenceAndHeadOn) {
  const auto only = mha::mask([](int b, int h, int, int) { return b == 1 && h == 2; });
  for (int b = 0; b < 3; ++b)
    for (int h = 0; h < 3; ++h) {
      EXPECT_EQ((only && only)(b, h, 0, 0), b == 1 && h == 2);
      EXPECT_EQ((only || only)(b, h, 0, 0), b == 1 && h == 2);
      EXPECT_EQ((!only)(b, h, 0, 0), b != 1 || h != 2);
    }
  const std::vector<int> lengths{0, 4};
  const mha::Padding padding{lengths};
  for (int b = 0; b < 2; ++b) {
    const TileVisibility expected = b == 0 ? none : full;
    EXPECT_EQ(mha::tile(padding && mha::Full{}, b, 5, 0, 2, 0, 4), expected);
    EXPECT_EQ(mha::tile(mha::Full{} && padding, b, 5, 0, 2, 0, 4), expected);
    EXPECT_EQ(mha::tile(!padding || !mha::Full{}, b, 5, 0, 2, 0, 4), b == 0 ? full : none);
  }
}

TEST(Composition, BorrowsIfAPartDoes) {
  static_assert(mha::Borrows<And<Causal, mha::Padding>> && mha::Borrows<Or<mha::Dense, Causal>>);
  static_assert(mha::Borrows<Not<mha::Padding>> && !mha::Borrows<And<Causal, Not<SlidingWindow>>>);
}

TEST(WithData, LeavesAPolicyWithoutDataAlone) {
  int asked = 0;
  const auto f = [&](const auto& data) {
    ++asked;
    return data;
  };
  EXPECT_EQ(mha::with_data(SlidingWindow{.left = 3}, f).left, 3);
  EXPECT_EQ((mha::with_data(!(Causal{} && SlidingWindow{.left = 3}), f).a.b.left), 3);
  EXPECT_EQ(asked, 0);
}

TEST(WithData, ReachesEveryPartOfAComposition) {
  const std::vector<int> lengths{2}, others{1};
  const auto replace = [&](const mha::Borrowed<int>&) { return mha::Borrowed<int>(others); };
  const mha::Padding p{lengths};
  EXPECT_FALSE(mha::with_data(p && Causal{}, replace)(0, 0, 5, 1));
  EXPECT_FALSE(mha::with_data(Causal{} && p, replace)(0, 0, 5, 1));
  EXPECT_FALSE(mha::with_data(p || !mha::Full{}, replace)(0, 0, 5, 1));
  EXPECT_FALSE(mha::with_data(!mha::Full{} || p, replace)(0, 0, 5, 1));
  EXPECT_TRUE(mha::with_data(!p, replace)(0, 0, 5, 1));
}

}  // namespace
