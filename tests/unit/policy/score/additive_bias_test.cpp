// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <limits>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/policy/score/additive_bias.hpp>

#include "../finite_difference.hpp"
#include "scratch.hpp"

namespace {

using mha::AdditiveBias;
using mha::Tensor;
using mha::TensorView;

constexpr mha::CallShape call{.batch = 2, .heads = 3, .queries = 4, .keys = 5, .origin = 1};

float value(int b, int h, int i, int k) { return 0.25f * static_cast<float>(((b * 3 + h) * 4 + i) * 5 + k) - 7; }

Tensor<float, 4> table(int b, int h, int i, int k) {
  Tensor<float, 4> t(b, h, i, k);
  for (int a = 0; a < b; ++a)
    for (int c = 0; c < h; ++c)
      for (int d = 0; d < i; ++d)
        for (int e = 0; e < k; ++e) t(a, c, d, e) = value(a, c, d, e);
  return t;
}

TEST(AdditiveBias, AddsTheTableAndRepeatsAxesOfOne) {
  for (const int b : {1, 2})
    for (const int h : {1, 3})
      for (const int i : {1, 4})
        for (const int k : {1, 5}) {
          const auto t = table(b, h, i, k);
          const auto score = AdditiveBias{t}.prepared(call);
          for (int n = 0; n < 2; ++n)
            for (int head = 0; head < 3; ++head)
              for (int row = 0; row < 4; ++row)
                for (int key = 0; key < 5; ++key)
                  EXPECT_EQ(score(0.5f, n, head, 1 + row, key),
                            0.5f + value(b == 1 ? 0 : n, h == 1 ? 0 : head, i == 1 ? 0 : row, k == 1 ? 0 : key));
        }
}

TEST(AdditiveBias, TakesTablesOfTwoAndThreeAxes) {
  Tensor<double, 2> pairs(4, 5);
  Tensor<float, 3> heads(3, 4, 5);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) {
      pairs(i, k) = value(0, 0, i, k);
      for (int h = 0; h < 3; ++h) heads(h, i, k) = value(0, h, i, k);
    }
  const auto of_pairs = AdditiveBias{pairs}.prepared(call);
  const auto of_heads = AdditiveBias{heads}.prepared(call);
  static_assert(std::is_same_v<decltype(of_pairs), const AdditiveBias<double>>);
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 5; ++k) {
          EXPECT_EQ(of_pairs(1.0, b, h, 1 + i, k), 1 + value(0, 0, i, k));
          EXPECT_EQ(of_heads(1.f, b, h, 1 + i, k), 1 + value(0, h, i, k));
        }
}

TEST(AdditiveBias, RowsAreTheCallsQueriesWhateverTheOrigin) {
  Tensor<float, 2> pairs(4, 2);
  pairs(2, 1) = 8;
  const int each[2] = {5, -2};
  for (const mha::Origins& origin : {mha::Origins(-3), mha::Origins(0), mha::Origins(9), mha::Origins(each)}) {
    const auto score =
        AdditiveBias{pairs}.prepared({.batch = 2, .heads = 1, .queries = 4, .keys = 2, .origin = origin});
    for (int b = 0; b < 2; ++b)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 2; ++k) EXPECT_EQ(score(0.f, b, 0, origin[b] + i, k), i == 2 && k == 1 ? 8.f : 0.f);
  }
}

TEST(AdditiveBias, ReadsViewsEigenMatricesAndStorageScalars) {
  Tensor<mha::bfloat16, 2> narrow(4, 5);
  Eigen::MatrixXf columns(4, 5);
  Tensor<float, 2> by_key(5, 4);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) {
      columns(i, k) = by_key(k, i) = value(0, 0, i, k);
      narrow(i, k) = mha::bfloat16(value(0, 0, i, k));
    }
  const auto of_narrow = AdditiveBias{narrow}.prepared(call);
  const auto of_columns = AdditiveBias{columns}.prepared(call);
  const auto of_transposed = AdditiveBias{mha::transposed(by_key.view())}.prepared(call);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) {
      const float sum = 0.5f + value(0, 0, i, k);
      EXPECT_EQ(of_narrow(0.5f, 0, 0, 1 + i, k), sum) << "the table's numbers are exact in bfloat16";
      EXPECT_EQ(of_columns(0.5f, 0, 0, 1 + i, k), sum);
      EXPECT_EQ(of_transposed(0.5f, 0, 0, 1 + i, k), sum);
    }
}

TEST(AdditiveBias, OfMinusInfinityHidesAndOfALargeNumberDoesNot) {
  Tensor<float, 2> pairs(1, 2);
  pairs(0, 0) = -std::numeric_limits<float>::infinity();
  pairs(0, 1) = -1e9f;
  const auto score = AdditiveBias{pairs}.prepared({.batch = 1, .heads = 1, .queries = 1, .keys = 2, .origin = 0});
  EXPECT_EQ(score(3.f, 0, 0, 0, 0), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(score(3.0, 0, 0, 0, 1), -1e9 + 3);
}

TEST(AdditiveBias, AgreesWithFiniteDifferences) {
  const auto t = table(1, 3, 4, 5);
  mha_test::expect_derivatives(
      AdditiveBias{t}.prepared({.batch = 1, .heads = 3, .queries = 4, .keys = 5, .origin = 0}));
}

template <class View> std::string refusal(const View& v) {
  return mha_test::message_of<mha::ShapeError>([&] { AdditiveBias{v}.prepared(call); });
}

TEST(AdditiveBias, NamesTheAxisThatDoesNotFit) {
  EXPECT_EQ(refusal(table(3, 3, 4, 5)), "AdditiveBias: the table has 3 sequences but the call has 2");
  EXPECT_EQ(refusal(table(2, 2, 4, 5)), "AdditiveBias: the table has 2 heads but the call has 3");
  EXPECT_EQ(refusal(table(2, 3, 5, 5)), "AdditiveBias: the table has 5 queries but the call has 4");
  EXPECT_EQ(refusal(table(2, 3, 4, 4)), "AdditiveBias: the table has 4 keys but the call has 5");
  EXPECT_EQ(refusal(table(2, 3, 4, 5)), "");
  const TensorView<const float, 2> missing{nullptr, {4, 5}, {5, 1}};
  EXPECT_EQ(refusal(missing), "AdditiveBias: the table has 20 elements but its data is null");
}

TEST(AdditiveBias, ReadsATemporaryBlock) {
  Eigen::MatrixXd all = Eigen::MatrixXd::Random(6, 5);
  const AdditiveBias bias{all.bottomRows(2)};
  static_assert(std::is_same_v<decltype(bias), const AdditiveBias<double>>);
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 5; ++k) EXPECT_EQ(bias(1., 0, 0, i, k), 1 + all(4 + i, k));
}

TEST(AdditiveBias, IsABorrowingScore) {
  static_assert(mha::Score<AdditiveBias<float>> && mha::Borrows<AdditiveBias<float>>);
}

}  // namespace
