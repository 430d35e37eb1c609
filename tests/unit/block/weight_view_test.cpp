// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/weight_view.hpp>
#include <mha/core/tensor.hpp>
#include <mha/interop/eigen.hpp>

namespace {

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

}  // namespace
