// SPDX-License-Identifier: Apache-2.0
// Two examples small enough to follow with a pocket calculator, recomputed in double precision outside this library.
#include <Eigen/Core>
#include <random>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// One head, causal, L = 4, d_k = 3, d_v = 2.
Matrix queries() {
  Matrix q(4, 3);
  q << 0.2, 0.1, 0.4, 0.0, 0.5, 0.3, 0.1, 0.0, 0.2, 0.3, 0.2, 0.1;
  return q;
}
Matrix keys() {
  Matrix k(4, 3);
  k << 0.2, 0.0, 0.1, 0.1, 0.4, 0.3, 0.3, 0.1, 0.2, 0.0, 0.2, 0.2;
  return k;
}
Matrix values() {
  Matrix v(4, 2);
  v << 0.5, 0.0, -0.2, 0.1, 0.3, -0.1, 0.0, 0.2;
  return v;
}

template <class Backend> class WorkedExamples : public testing::Test {};
using Backends = testing::Types<mha::Reference, mha::Cpu>;
TYPED_TEST_SUITE(WorkedExamples, Backends, );

TYPED_TEST(WorkedExamples, OneCausalHead) {
  Matrix expected(4, 2);
  expected << 0.500000, 0, 0.123780, 0.053746, 0.198273, 0, 0.147965, 0.048996;
  const Matrix out = mha::attention<TypeParam>(queries(), keys(), values(), mha::Causal{});
  EXPECT_LT((out - expected).cwiseAbs().maxCoeff(), 1e-6) << out;
}

TYPED_TEST(WorkedExamples, AForgottenScaleShows) {
  const Matrix out = mha::attention<TypeParam>(queries(), keys(), values(), mha::Causal{}, mha::Scale{1});
  EXPECT_NEAR(out(1, 0), 0.104755, 1e-6);
  EXPECT_NEAR(out(1, 1), 0.056464, 1e-6);
}

// A whole layer, causal, L = 5, d_model = 8, 2 heads, d_k = d_v = 4, no bias.
Matrix layer_input() {
  Matrix x(5, 8);
  for (int i = 0; i < 5; ++i)
    for (int j = 0; j < 8; ++j) x(i, j) = 0.01 * (i + 1) * (j + 1);
  return x;
}

/// Head by head W_Q, W_K, W_V, then W_O if the layer has one; each matrix from a distribution of its own.
template <class Layer> void draw_weights(Layer& layer) {
  std::mt19937 gen(42);
  layer.update([&](auto& p) {
    const auto fill = [&](const auto& matrix) {
      std::normal_distribution<double> normal(0, 0.1);
      for (int i = 0; i < matrix.extent[0]; ++i)
        for (int j = 0; j < matrix.extent[1]; ++j) matrix(i, j) = normal(gen);
    };
    for (int h = 0; h < 2; ++h)
      for (const auto* w : {&p.query, &p.key, &p.value}) fill(w->head(h));
    if (p.output.matrix().data != nullptr) fill(p.output.matrix());
  });
}

// The numbers are those of libstdc++'s normal_distribution; the standard leaves its algorithm open.
#if defined(__GLIBCXX__)
constexpr bool same_normal_numbers = true;
#else
constexpr bool same_normal_numbers = false;
#endif

TYPED_TEST(WorkedExamples, ConcatenatedHeadsOfALayer) {
  if (!same_normal_numbers) GTEST_SKIP() << "the weights come from libstdc++'s normal_distribution";
  mha::MultiHeadAttention<double, TypeParam, mha::Causal, mha::NoOutput> layer({.d_model = 8, .num_heads = 2});
  draw_weights(layer);
  Matrix expected(5, 8);
  expected << -0.015635283, 0.018206612, -0.007165578, 0.000664800, 0.021958789, 0.005582109, -0.012573507,
      -0.033516643, -0.023452405, 0.027309314, -0.010748129, 0.000997177, 0.032936317, 0.008372690, -0.018859192,
      -0.050272115, -0.031268490, 0.036410807, -0.014330204, 0.001329511, 0.043910112, 0.011162321, -0.025142739,
      -0.067021891, -0.039083017, 0.045510486, -0.017911565, 0.001661778, 0.054878308, 0.013950529, -0.031423080,
      -0.083763119, -0.046895468, 0.054607749, -0.021491975, 0.001993957, 0.065839039, 0.016736839, -0.037699147,
      -0.100492953;
  const Matrix heads = layer(layer_input());
  EXPECT_LT((heads - expected).cwiseAbs().maxCoeff(), 1e-9) << heads;
}

TYPED_TEST(WorkedExamples, OutputOfALayer) {
  if (!same_normal_numbers) GTEST_SKIP() << "the weights come from libstdc++'s normal_distribution";
  Matrix expected(5, 8);
  expected << 0.002740650, -0.004580325, -0.000339254, 0.007800864, -0.007380661, -0.001058213, -0.007620268,
      0.005930774, 0.004110742, -0.006870298, -0.000508784, 0.011700547, -0.011070605, -0.001587124, -0.011429784,
      0.008895737, 0.005480370, -0.009159892, -0.000678120, 0.015598732, -0.014759777, -0.002115647, -0.015238068,
      0.011859849, 0.006849301, -0.011448918, -0.000847164, 0.019494671, -0.018447791, -0.002643587, -0.019044500,
      0.014822687, 0.008217303, -0.013737187, -0.001015819, 0.023387614, -0.022134260, -0.003170749, -0.022848465,
      0.017783826;
  mha::MultiHeadAttention<double, TypeParam, mha::Causal> fused({.d_model = 8, .num_heads = 2});
  draw_weights(fused);
  const Matrix y = fused(layer_input());
  EXPECT_LT((y - expected).cwiseAbs().maxCoeff(), 1e-9) << y;

  mha::MultiHeadAttention<double, TypeParam, mha::Causal, mha::PerHeadProjection> per_head(
      {.d_model = 8, .num_heads = 2});
  draw_weights(per_head);
  const Matrix z = per_head(layer_input());
  EXPECT_LT((z - expected).cwiseAbs().maxCoeff(), 1e-9) << z;
}

}  // namespace
