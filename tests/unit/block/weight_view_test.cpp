// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/weight_view.hpp>
#include <mha/core/tensor.hpp>
#include <mha/interop/eigen.hpp>

#include "message_of.hpp"

namespace {

using support::message_of;
using Vector = mha::WeightView<float, 1>;
using Matrix = mha::WeightView<float, 2>;

TEST(WeightView, PointsAtItsOwnersMemory) {
  mha::Tensor<float, 2> matrix(3, 5);
  const Matrix w(matrix);
  EXPECT_EQ(w.data, matrix.data());
  EXPECT_EQ(&w(2, 4), &matrix(2, 4));
  EXPECT_EQ(&Matrix(mha::transposed(matrix.view()))(4, 2), &matrix(2, 4));
  EXPECT_EQ(Matrix().data, nullptr);
  EXPECT_EQ(Vector().extent[0], 0);
}

TEST(WeightView, AMatrixOfOneRowOrColumnIsAVector) {
  std::vector<float> numbers(12);
  const Vector row(mha::view(numbers.data(), 1, 4)), column(mha::TensorView<float, 2>{numbers.data(), {4, 1}, {3, 1}});
  EXPECT_EQ(row.extent[0], 4);
  EXPECT_EQ(&row(3), &numbers[3]);
  EXPECT_EQ(column.extent[0], 4);
  EXPECT_EQ(&column(3), &numbers[9]);
  Eigen::RowVectorXf eigen = Eigen::RowVectorXf::Zero(7);
  EXPECT_EQ(Vector(eigen).extent[0], 7);
}

TEST(WeightView, OtherMatricesAreNoVectors) {
  mha::Tensor<float, 2> matrix(2, 3);
  try {
    Vector v(matrix);
    FAIL() << "a matrix of two rows became a vector of " << v.extent[0];
  } catch (const mha::ShapeError& e) {
    EXPECT_EQ(std::string(e.what()), "borrow: a bias, norm or gate is (2, 3), expected one row or one column");
  }
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

}  // namespace
