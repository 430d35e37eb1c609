// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/norm_weights.hpp>

#include "scratch.hpp"

namespace {

TEST(NormWeights, BorrowedOnesAreVectorsAnyonesMemory) {
  const std::vector<float> numbers{1, 2, 3, 4, 5, 6};
  const mha::BorrowedNorm<float> none;
  EXPECT_EQ(none.weight.data, nullptr);
  EXPECT_EQ(none.bias.extent[0], 0);
  const mha::BorrowedNorm<float> norm{.weight = mha::view(numbers.data(), 4), .bias = mha::view(numbers.data() + 2, 4)};
  EXPECT_EQ(norm.weight(3), 4);
  EXPECT_EQ(norm.bias(0), 3);
  const mha::BorrowedNorm<float> row{.weight = mha::view(numbers.data(), 1, 6)};  // a matrix of one row is a vector
  EXPECT_EQ(row.weight(5), 6);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { static_cast<void>(mha::BorrowedNorm<float>{.weight = mha::view(numbers.data(), 2, 3)}); }),
            "borrow: a bias, norm or gate is (2, 3), expected one row or one column");
}

TEST(NormWeights, FlatIsOfOwnedOnesOnly) {
  std::vector<float> numbers{1, 2, 3, 4};
  mha::NormViews<float> views{mha::view(numbers.data(), 2), mha::view(numbers.data() + 2, 2), {}};
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(views.flat()); }),
      "parameters: flat() has nothing to show, because the weights are borrowed and need not be in one row: read them "
      "by name");
  views.all = std::span<float>(numbers);
  EXPECT_EQ(views.flat().size(), 4u);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([] { static_cast<void>(mha::NormViews<float>{}.flat()); }),
            "parameters: flat() has nothing to show, because the norm was moved from");
}

TEST(NormWeights, TheConfigurationLeavesTheKindsDefaultsOpen) {
  const mha::NormConfig config{.width = 3};
  EXPECT_FALSE(config.eps || config.bias || config.zero_centered);
}

}  // namespace
