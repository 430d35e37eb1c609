// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

namespace {

using mha::Index;

/// Two queries, three keys, head size 1: logits 0, log 2, log 3 for the first query and their double for the second.
struct OneHead {
  mha::Tensor<double, 2> q{2, 1}, k{3, 1}, v{3, 2};
  OneHead() {
    q(0, 0) = 1;
    q(1, 0) = 2;
    for (Index j = 0; j < 3; ++j) {
      k(j, 0) = std::log(j + 1.0);
      v(j, 0) = j;
      v(j, 1) = 1;
    }
  }
};

TEST(Reference, FollowsTheFormula) {
  const OneHead one;
  mha::Tensor<double, 1> lse(2);
  const auto out = mha::attention<mha::Reference>(one.q, one.k, one.v, mha::LogSumExp(lse));
  // Weights 1/6, 2/6, 3/6 and 1/14, 4/14, 9/14.
  EXPECT_NEAR(out(0, 0), (2.0 + 6.0) / 6, 1e-15);
  EXPECT_NEAR(out(1, 0), (4.0 + 18.0) / 14, 1e-15);
  EXPECT_NEAR(out(0, 1), 1, 1e-15);
  EXPECT_NEAR(lse(0), std::log(6.0), 1e-15);
  EXPECT_NEAR(lse(1), std::log(14.0), 1e-15);
}

TEST(Reference, GivesTheWeightsThemselves) {
  const OneHead one;
  const auto w = mha::attention_weights<mha::Reference>(one.q, one.k, mha::Causal{});
  // The second of two queries meets the last of three keys, so the first sees two.
  EXPECT_NEAR(w(0, 0, 0, 0), 1.0 / 3, 1e-15);
  EXPECT_NEAR(w(0, 0, 0, 1), 2.0 / 3, 1e-15);
  EXPECT_EQ(w(0, 0, 0, 2), 0);
  EXPECT_NEAR(w(0, 0, 1, 2), 9.0 / 14, 1e-15);
}

TEST(Reference, ScalesByTheRootOfTheHeadSizeByDefault) {
  mha::Tensor<double, 2> q(1, 16), k(2, 16), v(2, 1);
  for (Index d = 0; d < 16; ++d) q(0, d) = k(1, d) = 0.5;
  mha::Tensor<double, 1> lse(1);
  static_cast<void>(mha::attention<mha::Reference>(q, k, v, mha::LogSumExp(lse)));
  EXPECT_NEAR(lse(0), std::log(1 + std::exp(16 * 0.25 / 4)), 1e-14);
}

TEST(Reference, ScalesThenScoresThenMasks) {
  const OneHead one;
  mha::Tensor<double, 1> lse(2);
  const auto twice_plus = [](auto s, Index, Index, Index, Index k) { return s * 2.0 + k; };
  const auto not_one = mha::mask([](Index, Index, Index, Index k) { return k != 1; });
  static_cast<void>(mha::attention<mha::Reference>(one.q, one.k, one.v, mha::Scale{3}, mha::score(twice_plus), not_one,
                                                   mha::LogSumExp(lse)));
  // Logits 2·3·q·k + k of keys 0 and 2.
  EXPECT_NEAR(lse(0), std::log(1 + std::pow(3, 6) * std::exp(2)), 1e-13);
  EXPECT_NEAR(lse(1), std::log(1 + std::pow(3, 12) * std::exp(2)), 1e-13);
}

TEST(Reference, SinkTakesWeightButIsNotInTheLogSumExp) {
  const OneHead one;
  mha::Tensor<double, 1> lse(2);
  const auto out = mha::attention<mha::Reference>(one.q, one.k, one.v, mha::LogSumExp(lse), mha::Sink({0.f}));
  EXPECT_NEAR(out(0, 1), 6.0 / 7, 1e-15);
  EXPECT_NEAR(lse(0), std::log(6.0), 1e-15);
}

TEST(Reference, HiddenRowsAreZero) {
  const OneHead one;
  mha::Tensor<double, 1> lse(2);
  const auto out = mha::attention<mha::Reference>(one.q, one.k, one.v, !mha::Full{}, mha::LogSumExp(lse));
  for (const double x : out) EXPECT_EQ(x, 0);
  for (const double x : lse) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
}

TEST(Reference, DifferentiatesThroughDualNumbers) {
  using D = mha::Dual<double>;
  const OneHead one;
  const auto first = [&](auto key) {
    using T = decltype(key);
    mha::Tensor<T, 2> q(2, 1), k(3, 1), v(3, 2);
    for (Index i = 0; i < 2; ++i) q(i, 0) = T(one.q(i, 0));
    for (Index j = 0; j < 3; ++j) {
      k(j, 0) = T(one.k(j, 0));
      for (Index d = 0; d < 2; ++d) v(j, d) = T(one.v(j, d));
    }
    k(1, 0) = key;
    return mha::attention<mha::Reference>(q, k, v, mha::SoftCap{.cap = 2})(0, 0);
  };
  const double at = one.k(1, 0), h = 1e-5;
  const D exact = first(D::variable(at));
  EXPECT_NEAR(exact.value, first(at), 1e-14);
  EXPECT_NEAR(exact.derivative[0], (first(at + h) - first(at - h)) / (2 * h), 1e-8);
}

TEST(Reference, MultipliesMatrices) {
  mha::Workspace workspace;
  const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 2, 1, 0, 3}, bias[] = {10, 20};
  float c[4] = {};
  // (2, 3) · (3, 2), then b given as the transpose of itself.
  mha::Reference{}.gemm(
      mha::GemmCall<float>{mha::view(a, 2, 3), mha::view(b, 3, 2), mha::view(bias, 2), mha::view(c, 2, 2)}, workspace);
  EXPECT_EQ(c[0], 1 * 1 + 2 * 2 + 3 * 0 + 10);
  EXPECT_EQ(c[1], 1 * 0 + 2 * 1 + 3 * 3 + 20);
  EXPECT_EQ(c[2], 4 * 1 + 5 * 2 + 6 * 0 + 10);
  EXPECT_EQ(c[3], 4 * 0 + 5 * 1 + 6 * 3 + 20);
  mha::Reference{}.gemm(
      mha::GemmCall<float>{mha::view(a, 2, 3), mha::transposed(mha::view(b, 2, 3)), {}, mha::view(c, 2, 2)}, workspace);
  EXPECT_EQ(c[1], 1 * 1 + 2 * 0 + 3 * 3);
}

TEST(Reference, ExplainsItself) {
  EXPECT_NE(mha::Reference{}.explain<double>({}).find("plain loops in double"), std::string::npos);
  EXPECT_TRUE(mha::Reference{}.supported().ok);
}

}  // namespace
