// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

namespace {

using mha::GradientTo;
using mha::Index;

TEST(GradientTo, WritesOrAddsInEitherPrecision) {
  mha::Tensor<mha::bfloat16, 3> narrow(2, 3, 4);
  mha::Tensor<float, 2> wide(2, 3);
  const GradientTo<mha::bfloat16> to = narrow, wider = wide, sum = mha::add_to(narrow), none;
  EXPECT_TRUE(to.wanted());
  EXPECT_FALSE(none.wanted());
  const GradientTo<float> empty = mha::TensorView<float, 2>{};
  EXPECT_TRUE(empty.given() && !empty.wanted());
  EXPECT_TRUE(to.given() && sum.given() && !none.given());

  to.put(to.row(0, 1, 2), 3, 1.0009765625f);  // rounded to bfloat16
  EXPECT_EQ(float(narrow(1, 2, 3)), 1.f);
  sum.put(sum.row(0, 1, 2), 3, 0.0078125f);  // 1 + 2⁻⁷ is the next number
  EXPECT_EQ(float(narrow(1, 2, 3)), 1.0078125f);
  wider.put(wider.row(0, 1, 0), 2, 1.0009765625f);
  EXPECT_EQ(wide(1, 2), 1.0009765625f);
  EXPECT_EQ(wider.axes().extent[2], 1);
}

TEST(GradientTo, StoresNoNegativeZero) {
  mha::Tensor<float, 2> x(1, 1);
  GradientTo<float>(x).put(0, 0, -0.f);
  EXPECT_FALSE(std::signbit(x(0, 0)));
}

TEST(DifferentiatesAttention, IsAskedOfABackendAndAScalar) {
  static_assert(mha::DifferentiatesAttention<mha::Reference, double>);
  static_assert(mha::DifferentiatesAttention<mha::Reference, mha::Dual<double>>);
  struct Other : mha::Reference {
    void attend_backward() = delete;
  };
  static_assert(!mha::DifferentiatesAttention<Other, double>);
}

TEST(AttendBackwardCall, FindsRowsOfRaggedBatches) {
  using T = float;
  const std::vector<Index> q_offsets{0, 2, 5}, k_offsets{0, 1, 4};
  mha::Tensor<T, 4> rows(1, 5, 2, 3), keys(1, 4, 2, 3);
  mha::AttendBackwardCall<T, mha::ContiguousKv<T>, mha::Full, mha::NoScore> call{};
  call.forward.q_offsets = q_offsets.data();
  call.key_offsets = k_offsets.data();
  call.query = rows;
  call.key = keys;
  EXPECT_EQ(call.row(rows.view(), 1, 2, 1), &rows(0, 4, 1, 0));
  EXPECT_EQ(call.query_row(1, 2, 1), &rows(0, 4, 1, 0) - rows.data());
  EXPECT_EQ(call.key_row(call.key, 1, 2, 1), &keys(0, 3, 1, 0) - keys.data());
  EXPECT_EQ(call.row_d_log_sum_exp(1, 1, 2), 0);
}

}  // namespace
