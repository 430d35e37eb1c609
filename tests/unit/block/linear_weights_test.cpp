// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/linear_weights.hpp>

#include "message_of.hpp"

namespace {

using support::message_of;

TEST(LinearViews, FlatNeedsOwnWeights) {
  EXPECT_EQ(message_of([] { mha::LinearViews<float>{}.flat(); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
  std::vector<float> numbers(6);
  mha::LinearViews<float> p{mha::view(numbers.data(), 2, 3), {}, {}, {}, {}};
  EXPECT_EQ(
      message_of([&] { p.flat(); }),
      "parameters: flat() has nothing to show, because the weights are borrowed and need not be in one row: read them "
      "by name");
  p.all = numbers;
  EXPECT_EQ(p.flat().size(), 6u);
}

TEST(LinearConfig, SizesAreAtLeastOne) {
  using Parameters = mha::detail::LinearParameters<float, true>;
  EXPECT_EQ(message_of([] { Parameters({.inputs = 3, .outputs = -1}); }),
            "Linear: outputs is -1, it must be at least 1");
  EXPECT_EQ(message_of([] { Parameters({.inputs = 3, .outputs = 0x7fffffff}); }),
            "Linear: outputs is 2147483647, the limit is 1073741823");
  EXPECT_EQ(Parameters({.inputs = 3, .outputs = 5}).size(), 40);
  EXPECT_EQ(Parameters({.inputs = 3, .outputs = 5, .bias = false}).size(), 30);
}

TEST(LinearParameters, MoreThanAnIndexCountsCannotBeOwned) {
  mha::detail::LinearParameters<float, false> p({.inputs = 1 << 16, .outputs = 1 << 16, .bias = false});
  EXPECT_EQ(message_of([&] { p.writable(); }),
            "update: the Linear has 4294967296 parameters, the most in one allocation is 2147483647: borrow them");
}

}  // namespace
