// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/policy/qk_norm.hpp>

#include "random.hpp"

namespace {

using mha::QkNorm;

TEST(Norm, IsRecognisedByItsRole) {
  static_assert(mha::Norm<mha::NoNorm> && mha::Norm<const QkNorm&> && !mha::Norm<int>);
  static_assert(!mha::NoNorm::has_weights && QkNorm::has_weights);
}

TEST(QkNorm, IsTheFormulaForEveryHead) {
  constexpr int B = 2, L = 3, H = 2, D = 5;
  support::Random random("norm");
  mha::Tensor<double, 4> x(B, L, H, D);
  mha::Tensor<double, 1> weight(D);
  random.fill(x);
  random.fill(weight);
  const auto before = x;
  for (const double eps : {1e-6, 0.5}) {
    x = before;
    QkNorm{.eps = eps}.apply<double>(x.view(), weight.view());
    for (int b = 0; b < B; ++b)
      for (int l = 0; l < L; ++l)
        for (int h = 0; h < H; ++h) {
          double squares = 0;
          for (int d = 0; d < D; ++d) squares += std::pow(before(b, l, h, d), 2);
          for (int d = 0; d < D; ++d)
            EXPECT_NEAR(x(b, l, h, d), before(b, l, h, d) / std::sqrt(squares / D + eps) * weight(d), 1e-14);
        }
  }
}

TEST(QkNorm, GivesRowsOfMeanSquareOneWhateverTheirLength) {
  float x[3][4] = {{1, 2, 3, 4}, {1e4f, -1e4f, 2e4f, 0}, {0, 0, 0, 0}};
  const float ones[4] = {1, 1, 1, 1};
  QkNorm{}.apply<float>(mha::view_blhd(&x[0][0], 1, 3, 1, 4), mha::view(ones, 4));
  for (int row = 0; row < 3; ++row) {
    float squares = 0;
    for (const float value : x[row]) squares += value * value;
    EXPECT_NEAR(squares / 4, row < 2 ? 1 : 0, 1e-5) << "a row of zeros stays zero";
  }
}

TEST(QkNorm, SumsInTheAccumulatorAndFollowsStrides) {
  constexpr int D = 600;  // 600 squares of 1: a bfloat16 sum would stop at 256
  mha::Tensor<mha::bfloat16, 4> memory(1, 2, 1, D);
  for (auto& v : memory) v = mha::bfloat16(2.f);
  mha::Tensor<mha::bfloat16, 1> weight(D);
  for (auto& v : weight) v = mha::bfloat16(3.f);
  const auto x = mha::view_bhld(memory.data(), 1, 1, 2, D);
  QkNorm{}.apply<mha::bfloat16>(x, weight.view());
  for (const mha::bfloat16 v : memory) EXPECT_EQ(float(v), 3);

  float heads[8] = {3, 4, 0, 0, 6, 8, 30, 40};  // (H = 2, L = 2, D = 2)
  const float weights[2] = {1, 10};
  QkNorm{.eps = 0}.apply<float>(mha::view_bhld(heads, 1, 1, 2, 2), mha::view(weights, 2));
  EXPECT_FLOAT_EQ(heads[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(heads[1], 40 / std::sqrt(12.5f));
}

}  // namespace
