// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>

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
    mha::detail::run_serially(QkNorm{.eps = eps}.items<double>(x.view(), weight.view()));
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

// Forward and backward are those of 1 + weight, bit for bit.
TEST(QkNorm, ReadsWeightsStoredLessOne) {
  constexpr int L = 3, D = 4;
  support::Random random("zero-centred");
  mha::Tensor<double, 4> x(1, L, 2, D);
  mha::Tensor<double, 1> stored(D), whole(D);
  random.fill(x);
  random.fill(stored);
  for (int d = 0; d < D; ++d) whole(d) = 1 + stored(d);
  auto ours = x, theirs = x;
  mha::detail::run_serially(QkNorm{.eps = 0.1, .zero_centered = true}.items<double>(ours.view(), stored.view()));
  mha::detail::run_serially(QkNorm{.eps = 0.1}.items<double>(theirs.view(), whole.view()));
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(ours.data()[i], theirs.data()[i]);
  double a[D] = {0.3, -1, 0.7, 2}, b[D] = {0.3, -1, 0.7, 2}, a_sums[D] = {}, b_sums[D] = {};
  QkNorm{.eps = 0.1, .zero_centered = true}.row_backward<double>(x.data(), 1, stored.view(), a, a_sums);
  QkNorm{.eps = 0.1}.row_backward<double>(x.data(), 1, whole.view(), b, b_sums);
  for (int d = 0; d < D; ++d) {
    EXPECT_EQ(a[d], b[d]);
    EXPECT_EQ(a_sums[d], b_sums[d]);
  }
}

TEST(QkNorm, GivesRowsOfMeanSquareOneWhateverTheirLength) {
  float x[3][4] = {{1, 2, 3, 4}, {1e4f, -1e4f, 2e4f, 0}, {0, 0, 0, 0}};
  const float ones[4] = {1, 1, 1, 1};
  mha::detail::run_serially(QkNorm{}.items<float>(mha::view_blhd(&x[0][0], 1, 3, 1, 4), mha::view(ones, 4)));
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
  mha::detail::run_serially(QkNorm{}.items<mha::bfloat16>(x, weight.view()));
  for (const mha::bfloat16 v : memory) EXPECT_EQ(float(v), 3);

  float heads[8] = {3, 4, 0, 0, 6, 8, 30, 40};  // (H = 2, L = 2, D = 2)
  const float weights[2] = {1, 10};
  mha::detail::run_serially(QkNorm{.eps = 0}.items<float>(mha::view_bhld(heads, 1, 1, 2, 2), mha::view(weights, 2)));
  EXPECT_FLOAT_EQ(heads[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(heads[1], 40 / std::sqrt(12.5f));
}

TEST(QkNorm, BackwardOfARowIsItsDerivative) {
  const QkNorm norm{.eps = 0.25};
  const double weights[3] = {1.5, -2, 0.5};
  const auto weight = mha::view(weights, 3);
  double x[6] = {1, 9, -0.5, 9, 2, 9};  // every second one
  const double given[3] = {0.3, -1, 0.7};
  const auto loss = [&](const double* w) {
    double y[3] = {x[0], x[2], x[4]}, sum = 0;
    mha::detail::run_serially(
        norm.items<double>(mha::TensorView<double, 4>{y, {1, 1, 1, 3}, {3, 3, 3, 1}}, mha::view(w, 3)));
    for (int i = 0; i < 3; ++i) sum += given[i] * y[i];
    return sum;
  };
  double d[3] = {given[0], given[1], given[2]}, sums[3] = {1, 1, 1};
  norm.row_backward<double>(x, 2, weight, d, sums);
  constexpr double h = 1e-5;
  for (int i = 0; i < 3; ++i) {
    const double at = x[2 * i];
    x[2 * i] = at + h;
    const double up = loss(weights);
    x[2 * i] = at - h;
    const double down = loss(weights);
    x[2 * i] = at;
    EXPECT_NEAR(d[i], (up - down) / (2 * h), 1e-9);
    double moved[3] = {weights[0], weights[1], weights[2]};
    moved[i] += 1;
    EXPECT_NEAR(sums[i], 1 + loss(moved) - loss(weights), 1e-12) << "linear in the weight";
  }
  // A row whose gradient is 0 contributes nothing.
  double zero[3] = {0, 0, 0};
  x[0] = std::numeric_limits<double>::quiet_NaN();
  const double before = sums[0];
  norm.row_backward<double>(x, 2, weight, zero, sums);
  EXPECT_EQ(zero[0], 0);
  EXPECT_EQ(sums[0], before);
}

}  // namespace
