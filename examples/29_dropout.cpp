// SPDX-License-Identifier: Apache-2.0
// 29: dropout
//
// You learn   which weights a call drops: that depends on the seed, not on threads, backend or the order of calls
// The maths   out_i = Σ_k keep(i, k) / (1 − p) · weight_ik · v_k, where keep(i, k) is 0 with the probability p, else 1;
//             on average over seeds it is attention without dropout
// Symbols     L = 6 tokens, E = 16 numbers per token, p = 0.25
// Output      the weights of one row, which of them a seed keeps, and the average over many seeds:
//               kept:      1 1 1 0 1 0
//               weights:   0.363 0.088 0.314 0.000 0.260 0.000
//               without a seed nothing is dropped
//               mean of 4000 seeds: off by 0.01
// Training    27_train_a_layer.cpp with layer(x, tape, mha::DropoutSeed{7, step})
// Next        30_eigen_cpu.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 6, E = 16;

int main() {
  const mha::Dropout dropout{.p = 0.25f};
  using Layer = mha::MultiHeadAttention<double, mha::Cpu, mha::Dropout>;
  Layer layer({.d_model = E, .num_heads = 4}, dropout);
  layer.initialize(mha::XavierUniform{.seed = 1});
  Matrix x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3 * (i + 1) * (e + 2));

  // Whether a pair is kept is known beforehand: here with 4 heads, in sequence 0, head 2, query 3.
  const mha::DropoutSeed seed{7, 100};  // one for the run, and the number of the step
  const auto weights = layer.attention_weights(x, seed), all = layer.attention_weights(x);
  bool told = true;
  std::printf("kept:     ");
  for (int k = 0; k < L; ++k) {
    const bool kept = mha::dropout_keeps(dropout, seed, 4, 0, 2, 3, k);
    const double expected = kept ? all(0, 2, 3, k) / 0.75 : 0;
    told = told && std::abs(weights(0, 2, 3, k) - expected) < 1e-12;
    std::printf(" %d", kept ? 1 : 0);
  }
  std::printf("\nweights:  ");
  for (int k = 0; k < L; ++k) std::printf(" %.3f", weights(0, 2, 3, k));

  // The same seed on another backend drops the same weights.
  mha::MultiHeadAttention<double, mha::Reference, mha::Dropout> other({.d_model = E, .num_heads = 4}, dropout);
  other.borrow(layer);
  const bool agree = (other(x, seed) - layer(x, seed)).norm() < 1e-12;

  mha::MultiHeadAttention<double> plain({.d_model = E, .num_heads = 4});
  plain.borrow(layer);
  const Matrix y = layer(x);
  const bool keeps_all = y == plain(x);
  std::printf("\n%s\n", keeps_all ? "without a seed nothing is dropped" : "something is dropped without a seed");

  constexpr int seeds = 4000;
  Matrix mean = Matrix::Zero(L, E);
  for (int step = 0; step < seeds; ++step) mean += layer(x, mha::DropoutSeed{7, step}) / seeds;
  const double off = (mean - y).norm() / y.norm();
  std::printf("mean of %d seeds: off by %.2f\n", seeds, off);
  return told && agree && keeps_all && off < 0.05 ? 0 : 1;
}
