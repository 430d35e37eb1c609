// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/view.hpp>
#include <mha/io/dense_rows.hpp>

namespace {

using mha::TensorView;
using mha::detail::each_row;
using mha::detail::five_axes;
using mha::detail::joined_shape;

template <int Rank> std::vector<int> in_order(const TensorView<const int, Rank>& v) {
  std::vector<int> all;
  const auto five = five_axes(v);
  each_row(five, [&](const int* row) {
    for (mha::Index i = 0; i < five.extent[4]; ++i) all.push_back(row[i * five.stride[4]]);
  });
  return all;
}

TEST(DenseRows, AreInTheOrderOfTheAxes) {
  std::vector<int> numbers(48);
  std::iota(numbers.begin(), numbers.end(), 0);
  const int* const p = numbers.data();
  EXPECT_EQ(in_order(mha::view(p, 4)), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(in_order(mha::transposed(mha::view(p, 2, 3))), (std::vector{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(in_order(TensorView<const int, 1>{p + 4, {3}, {-2}}), (std::vector{4, 2, 0}));
  EXPECT_EQ(in_order(TensorView<const int, 3>{p, {2, 1, 2}, {0, 7, 5}}), (std::vector{0, 5, 0, 5}));
  EXPECT_EQ(in_order(mha::view(p, 2, 2, 3, 2, 2)), numbers);
}

TEST(DenseRows, OfNothingAreNone) {
  EXPECT_EQ(in_order(TensorView<const int, 2>{nullptr, {3, 0}, {0, 1}}), std::vector<int>{});
  EXPECT_EQ(in_order(TensorView<const int, 2>{nullptr, {0, 3}, {3, 1}}), std::vector<int>{});
}

TEST(DenseRows, ShapesJoinTheirFirstAxes) {
  using Shape = std::vector<std::uint64_t>;
  const TensorView<const int, 3> v{nullptr, {2, 3, 4}, {}};
  EXPECT_EQ(joined_shape(v, 3), (Shape{2, 3, 4}));
  EXPECT_EQ(joined_shape(v, 2), (Shape{6, 4}));
  EXPECT_EQ(joined_shape(v, 1), (Shape{24}));
}

}  // namespace
