// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block/arguments.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>
#include <mha/interop/eigen.hpp>

namespace {

using mha::detail::find_rows;

TEST(Arguments, AreFoundInAnyOrderAndGetABatch) {
  mha::Tensor<float, 2> y(3, 4), r(3, 4);
  mha::Tensor<float, 3> s(2, 3, 4);
  mha::Workspace workspace;
  const auto into = mha::into(y);
  const auto residual = mha::residual(std::as_const(r));
  const auto sum = mha::sum_into(s);
  const auto result = find_rows<mha::Into, float>(residual, workspace, into, sum);
  EXPECT_EQ(result.data, y.data());
  EXPECT_EQ(result.extent[0], 1);
  const auto added = find_rows<mha::Residual, const float>(workspace, sum, residual);
  EXPECT_EQ(added.data, r.data());
  EXPECT_EQ(&added(0, 2, 3), &r(2, 3));
  const auto stored = find_rows<mha::SumInto, float>(into, sum);
  EXPECT_EQ(stored.data, s.data());
  EXPECT_EQ(stored.extent[0], 2);
}

TEST(Arguments, AbsentOnesHaveNoData) {
  mha::Workspace workspace;
  const auto result = find_rows<mha::Into, float>(workspace);
  const auto added = find_rows<mha::Residual, const float>(workspace);
  const auto stored = find_rows<mha::SumInto, float>();
  EXPECT_EQ(result.data, nullptr);
  EXPECT_EQ(added.data, nullptr);
  EXPECT_EQ(stored.data, nullptr);
}

TEST(Arguments, AreWhatTheyAreAndNothingElse) {
  mha::Tensor<float, 2> t(3, 4);
  using Into = decltype(mha::into(t));
  using Residual = decltype(mha::residual(t));
  using Sum = decltype(mha::sum_into(t));
  static_assert(mha::detail::ResidualArgument<Residual> && mha::detail::ResidualArgument<const Residual&>);
  static_assert(!mha::detail::ResidualArgument<Into> && !mha::detail::ResidualArgument<Sum>);
  static_assert(mha::detail::SumIntoArgument<Sum&> && !mha::detail::SumIntoArgument<Into>);
  static_assert(!mha::detail::IntoArgument<Residual> && !mha::detail::IntoArgument<Sum>);
}

TEST(Arguments, BlocksOfEigenMatricesAreViewsThatLast) {
  Eigen::MatrixXf x = Eigen::MatrixXf::Zero(5, 4);
  EXPECT_EQ(&mha::residual(x.topRows(3)).from(2, 1), &x(2, 1));
  EXPECT_EQ(&mha::sum_into(x.bottomRows(3)).to(2, 1), &x(4, 1));
}

}  // namespace
