// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/check.hpp>
#include <mha/core/view.hpp>

#include "scratch.hpp"

namespace {

using mha::ShapeError;
using mha_test::message_of;

TEST(ShapeError, IsAnInvalidArgument) {
  static_assert(std::is_base_of_v<std::invalid_argument, ShapeError>);
  EXPECT_THROW(mha::detail::fail("x"), std::invalid_argument);
}

TEST(Fail, JoinsTextAndNumbersOfAnyType) {
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::fail("a", std::string(" has "), 3, " of ", 5000000000LL); }),
            "a has 3 of 5000000000");
}

TEST(Require, ThrowsOnlyIfTheConditionDoesNotHold) {
  EXPECT_NO_THROW(mha::detail::require(true, "never"));
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::require(false, "extent ", -1); }), "extent -1");
}

TEST(RequireEqual, NamesTheCallTheAxisAndBothValues) {
  EXPECT_NO_THROW(mha::detail::require_equal("attention", "length", "k", 7, "v", 7));
  EXPECT_EQ(message_of<ShapeError>([] { mha::detail::require_equal("attention", "length", "k", 7, "v", 6); }),
            "attention: k has length 7 but v has length 6");
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

}  // namespace
