// SPDX-License-Identifier: Apache-2.0
// A user's first layer; row 0 of a causal layer sees only itself, so that its output is x₀ W_V W_O by hand.
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

int main() {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  constexpr int E = 64, H = 8, Hkv = 2, D = E / H;

  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<Hkv>, mha::Causal> layer({.d_model = E, .num_heads = H});
  layer.initialize(mha::XavierUniform{.seed = 1});
  const Matrix x = Matrix::Random(5, E);  // (L, E)
  const Matrix y = layer(x);              // (L, E)

  const auto p = layer.parameters();
  float value[H * D] = {};
  for (int h = 0; h < H; ++h) {
    for (int d = 0; d < D; ++d) {
      for (int e = 0; e < E; ++e) value[h * D + d] += x(0, e) * p.value.matrix()(e, h / (H / Hkv) * D + d);
    }
  }
  float worst = 0;
  for (int e = 0; e < E; ++e) {
    float expected = 0;
    for (int j = 0; j < H * D; ++j) expected += value[j] * p.output.matrix()(j, e);
    const float difference = std::fabs(y(0, e) - expected);
    worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
  }
  std::printf("largest error of row 0: %g\n", static_cast<double>(worst));
  return y.rows() == 5 && y.cols() == E && y.row(0).norm() > 0 && worst < 1e-5f ? 0 : 1;
}
