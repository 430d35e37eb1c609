// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/linear_weights.hpp>
#include <mha/core/tensor.hpp>

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

TEST(CheckBorrowed, SaysBothShapes) {
  mha::Tensor<float, 2> w(3, 5);
  const mha::TensorView<const float, 2> matrix = w.view();
  mha::detail::check_borrowed("weight", matrix, 3, 5);
  EXPECT_EQ(message_of([&] { mha::detail::check_borrowed("weight", matrix, 4, 5); }),
            "borrow: the weight matrix is (3, 5), expected (4, 5)");
  EXPECT_EQ(message_of([&] { mha::detail::check_borrowed("weight", matrix, 5, 3); }),
            "borrow: the weight matrix is (3, 5), expected (5, 3): pass mha::transposed(view)");
  mha::Tensor<float, 1> b(4);
  EXPECT_EQ(message_of([&] { mha::detail::check_borrowed<float>("bias", b.view(), 5); }),
            "borrow: the bias has 4 elements, expected 5");
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
