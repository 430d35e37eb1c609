// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/cuda/products.hpp>

namespace {

using mha::TensorView;
using mha::cuda::operand;

using View = TensorView<const float, 2>;

TEST(Operand, IsAViewWithOneUnitStride) {
  const float x[64] = {};
  const auto rows = operand(View{x, {3, 4}, {10, 1}});
  ASSERT_TRUE(rows);
  EXPECT_FALSE(rows->by_columns);
  EXPECT_EQ(rows->stride, 10);
  const auto columns = operand(View{x, {3, 4}, {1, 7}});
  ASSERT_TRUE(columns);
  EXPECT_TRUE(columns->by_columns);
  EXPECT_EQ(columns->stride, 7);
  EXPECT_FALSE(operand(View{x, {3, 4}, {10, 2}}));
  EXPECT_FALSE(operand(View{x, {3, 4}, {0, 1}})) << "rows that overlap";
  EXPECT_FALSE(operand(View{x, {3, 4}, {3, 1}}));
  EXPECT_FALSE(operand(View{x, {3, 4}, {-4, 1}}));
}

TEST(Operand, AnAxisOfOneElementHasNoStride) {
  const float x[64] = {};
  const auto one_row = operand(View{x, {1, 4}, {0, 1}});
  ASSERT_TRUE(one_row);
  EXPECT_FALSE(one_row->by_columns);
  EXPECT_EQ(one_row->stride, 4);
  const auto one_column = operand(View{x, {5, 1}, {3, 17}});
  ASSERT_TRUE(one_column);
  EXPECT_FALSE(one_column->by_columns);
  EXPECT_EQ(one_column->stride, 3);
}

TEST(Products, ScalarsAreMultipliedInTheirOwnPrecision) {
  static_assert(mha::cuda::multiplies<float> && mha::cuda::multiplies<mha::half> &&
                !mha::cuda::multiplies<long double>);
  static_assert(mha::cuda::data_type<mha::bfloat16> == CUDA_R_16BF && mha::cuda::data_type<double> == CUDA_R_64F);
}

}  // namespace
