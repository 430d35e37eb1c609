// SPDX-License-Identifier: Apache-2.0
// The program on the front page, README.md, which also shows its output; next: 01_one_head_by_hand.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

int main() {
  // 8 query heads share 2 key/value heads; a token sees itself and the tokens before it; float32 on the CPU.
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer({.d_model = 512, .num_heads = 8});
  layer.initialize(mha::XavierUniform{.seed = 1});

  Eigen::MatrixXf x(6, 512);  // (length, d_model)
  for (int i = 0; i < 6; ++i)
    for (int e = 0; e < 512; ++e) x(i, e) = std::sin(0.1f * float(i + 1) * float(e));
  const auto y = layer(x);  // (length, d_model)

  for (int i = 0; i < 6; ++i) std::printf("%8.4f %8.4f %8.4f %8.4f ...\n", y(i, 0), y(i, 1), y(i, 2), y(i, 3));
}
