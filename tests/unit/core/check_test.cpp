// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/check.hpp>
#include <mha/core/view.hpp>

#include "scratch.hpp"

namespace {

using mha::Index;
using mha::Required;
using mha::ShapeError;
using mha::detail::blocks_of;
using mha::detail::checked_product;
using mha_test::message_of;

TEST(ShapeError, IsAnInvalidArgument) {
  static_assert(std::is_base_of_v<std::invalid_argument, ShapeError>);
  EXPECT_THROW(mha::detail::fail("x"), std::invalid_argument);
}

TEST(Fail, JoinsTextAndNumbersOfAnyType) {
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::fail("a", std::string(" has "), 3, " of ", 5000000000LL); }),
            "a has 3 of 5000000000");
}

TEST(Fail, WritesNumbersShort) {
  const auto said = [](auto number) { return message_of<ShapeError>([&] { mha::detail::fail(number); }); };
  EXPECT_EQ(said(-1.), "-1");
  EXPECT_EQ(said(0.5f), "0.5");
  EXPECT_EQ(said(-1e-9), "-1e-09");
  EXPECT_EQ(said(1e300), "1e+300");
  EXPECT_EQ(said(1 / 3.), "0.333333333");
  EXPECT_EQ(said(std::numeric_limits<double>::infinity()), "inf");
}

TEST(RequireFree, ThrowsWhatACallerCanTellFromAFault) {
  using mha::CacheRoom;
  static_assert(std::is_base_of_v<ShapeError, mha::CacheFull>);
  EXPECT_NO_THROW(mha::detail::require_free({CacheRoom::pages, 3, 3, 8}, "never"));
  EXPECT_EQ(message_of<mha::CacheFull>([] {
              mha::detail::require_free({CacheRoom::pages, 1, 0, 8}, "pages ", 0);
            }),
            "pages 0");
  try {
    mha::detail::require(false, "a fault");
  } catch (const mha::CacheFull&) {
    FAIL();
  } catch (const ShapeError&) {
  }
}

TEST(RequireFree, SaysHowManyInNumbers) {
  for (const auto of : {mha::CacheRoom::pages, mha::CacheRoom::sequences}) try {
      mha::detail::require_free({of, 4, 3, 8}, "full");
      FAIL();
    } catch (const mha::CacheFull& full) {
      EXPECT_EQ(full.of, of);
      EXPECT_EQ(full.needed, 4);
      EXPECT_EQ(full.free, 3);
      EXPECT_EQ(full.total, 8);
    }
}

TEST(Require, ThrowsOnlyIfTheConditionDoesNotHold) {
  EXPECT_NO_THROW(mha::detail::require(true, "never"));
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::require(false, "extent ", -1); }), "extent -1");
}

TEST(RequireEqual, NamesTheCallTheAxisAndBothValues) {
  EXPECT_NO_THROW(mha::detail::require_equal("attention", "length", "k", 7, "v", 7));
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::require_equal("attention", "length", "k", 7, "v", 6); }),
            "attention: k has length 7 but v has length 6");
  EXPECT_NO_THROW(mha::detail::require_equal("attention", "heads", "k", 2, "v", 2));
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::require_equal("attention", "heads", "k", 3, "v", 2); }),
            "attention: k has 3 heads but v has 2");
}

TEST(RequireData, RefusesNullUnlessThereIsNothing) {
  float memory[6] = {};
  float* const null = nullptr;
  EXPECT_NO_THROW(mha::detail::require_data("attention", "q", mha::view(memory, 2, 3)));
  EXPECT_NO_THROW(mha::detail::require_data("attention", "q", mha::view(null, 0, 3)));
  EXPECT_EQ(message_of<ShapeError>([&] { mha::detail::require_data("attention", "q", mha::view(null, 2, 3)); }),
            "attention: q has 6 elements but its data is null");
}

TEST(RequireData, RefusesANegativeExtent) {
  float memory[1] = {};
  EXPECT_EQ(message_of<ShapeError>([&] { mha::detail::require_data("attention", "q", mha::view(memory, 2, -3)); }),
            "attention: q has extent -3 on axis 1");
}

constexpr Index most = std::numeric_limits<Index>::max();

TEST(CheckedProduct, CountsAnEmptyAxisAsOne) {
  static_assert(checked_product("call", "x", {2, 3, 5}) == 30);
  static_assert(checked_product("call", "x", {0, 3, 0, 5}) == 15);
  static_assert(checked_product("call", "x", {most, 1 << 24}) == std::ptrdiff_t{most} << 24);
  static_assert(checked_product("call", "x", {}) == 1);
}

TEST(CheckedProduct, RefusesWhatNoMemoryHolds) {
  EXPECT_EQ(checked_product("call", "x", {mha::detail::most_elements}), mha::detail::most_elements);
  EXPECT_EQ(message_of<mha::ShapeError>(
                [] { static_cast<void>(checked_product("call", "x", {mha::detail::most_elements + 1})); }),
            "call: x is (36028797018963968), more than 36028797018963967 elements, an empty axis counted as 1");
  // 2^64 would be 0, 2^63 negative; an axis of 0 beside them hides neither.
  for (const Index last : {1 << 16, 1 << 15})
    EXPECT_EQ(message_of<mha::ShapeError>([&] {
                static_cast<void>(checked_product("call", "x", {1 << 16, 1 << 16, 0, 1 << 16, last}));
              }),
              "call: x is (65536, 65536, 0, 65536, " + std::to_string(last) +
                  "), more than 36028797018963967 elements, an empty axis counted as 1");
}

bool sees_all(int, int, int, int) { return true; }
float plus_one(float s, int, int, int, int) { return s + 1; }

TEST(RequireFunction, RefusesOneThatIsNull) {
  using Pointer = bool (*)(int, int, int, int);
  using Function = std::function<float(float, int, int, int, int)>;
  const auto message = [](const auto& f) {
    return message_of<ShapeError>([&] { mha::detail::require_function("mask", f); });
  };
  const std::string refused = "mask: the function is null, expected one to call";
  EXPECT_EQ(message(Pointer{}), refused);
  EXPECT_EQ(message(Function()), refused);
  EXPECT_EQ(message(Pointer{&sees_all}), "");
  EXPECT_EQ(message(Function(&plus_one)), "");
  EXPECT_EQ(message([](int, int, int, int) { return true; }), "");
}

TEST(BlocksOf, RoundsUpWhereASumWouldOverflow) {
  static_assert(blocks_of(0, 4) == 0 && blocks_of(1, 4) == 1 && blocks_of(4, 4) == 1 && blocks_of(5, 4) == 2);
  static_assert(blocks_of(most, 64) == 1 << 25 && blocks_of(most, most) == 1 && blocks_of(most, 1) == most);
}

struct Reach {
  Required<int> left;
  int right = 0;
};

TEST(Required, TakesAnyIntegerThatFits) {
  const std::int64_t four = 4, many = std::int64_t{1} << 32;
  EXPECT_EQ((Reach{.left = four}.left), 4);
  EXPECT_EQ((Reach{.left = std::size_t{4}}.left), 4);
  EXPECT_EQ((Reach{.left = static_cast<short>(4)}.left), 4);
  const auto refusal = [](auto left) {
    return message_of<ShapeError>([&] { static_cast<void>(Reach{.left = left}); });
  };
  const std::string largest = ", the largest is 2147483647";
  EXPECT_EQ(refusal(many + 4), "a number of rows, positions or pages is 4294967300" + largest);
  EXPECT_EQ(refusal(static_cast<unsigned>(many - 1)), "a number of rows, positions or pages is 4294967295" + largest);
}

struct Window {
  Required<int, "Window: left"> left;
};

TEST(AtMostOne, CountsWhatIsSo) {
  static_assert(mha::detail::at_most_one<> && mha::detail::at_most_one<false, true, false>);
  static_assert(!mha::detail::at_most_one<true, false, true>);
}

TEST(Required, IsRefusedByItsName) {
  EXPECT_EQ(message_of<ShapeError>([] { static_cast<void>(Window{.left = std::int64_t{1} << 31}); }),
            "Window: left is 2147483648, the largest is 2147483647");
  EXPECT_EQ((Window{.left = Reach{.left = 4}.left}.left), 4) << "one of another name is an integer that fits";
  struct Metres {
    int value;
  };
  static_assert(std::is_convertible_v<Required<int>, Required<int, "Window: left">>);
  static_assert(!std::is_convertible_v<Metres, Required<int>> && !std::is_convertible_v<Required<long>, Required<int>>,
                "what merely has a value is no number");
}

TEST(Required, HasNoDefault) {
  static_assert(!std::is_default_constructible_v<Required<int>> && !std::is_default_constructible_v<Reach>);
  static_assert(!std::is_aggregate_v<Required<int>>, "Required<int>{} must not compile");
  constexpr Reach reach{.left = 4};
  static_assert(reach.left == 4 && reach.left.value == 4 && reach.right == 0);
  static_assert(std::is_trivially_copyable_v<Reach>);
}

}  // namespace
