// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <Eigen/Core>

#include <mha/mha.hpp>

/// Compiled in both units: a layer and attention that return Eigen matrices, again and again, so that memory which one
/// unit's functions allocate and the other's free would be found out. Whether the results are right.
inline bool eigen_calls_are_right() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(7, 6), v = Eigen::MatrixXf::Random(7, 3);
  mha::MultiHeadAttention<float, mha::Reference> layer({.d_model = 6, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  bool right = true;
  for (int round = 0; round < 50; ++round) {
    const auto whole = layer(x);
    const Eigen::MatrixXf first = layer(Eigen::MatrixXf(x), mha::Causal{}), y = mha::attention<mha::Reference>(x, x, v);
    right = right && whole.rows() == 7 && whole.cols() == 6 && whole.allFinite() && first.allFinite();
    for (int i = 0; i < 7; ++i) {
      double sum = 0, expected[3] = {};
      for (int k = 0; k < 7; ++k) {
        double dot = 0;
        for (int d = 0; d < 6; ++d) dot += double(x(i, d)) * double(x(k, d));
        const double weight = std::exp(dot / std::sqrt(6.0));
        sum += weight;
        for (int d = 0; d < 3; ++d) expected[d] += weight * double(v(k, d));
      }
      for (int d = 0; d < 3; ++d) right = right && std::abs(double(y(i, d)) - expected[d] / sum) < 1e-5;
    }
  }
  return right;
}

bool eigen_calls_over_there();
