// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a layer takes x with 2 or 3 axes
#include <Eigen/Core>

#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return layer(2 * x);
#else
  return layer((2 * x).eval());
#endif
}
