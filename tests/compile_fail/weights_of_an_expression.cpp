// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention takes tensors with 2 to 4 axes
#include <Eigen/Core>

#include <mha/mha.hpp>

auto result(const Eigen::MatrixXf& q, const Eigen::MatrixXf& k) {
#ifdef MHA_FAIL
  return mha::attention_weights(2 * q, k);
#else
  return mha::attention_weights((2 * q).eval(), k);
#endif
}
