// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a norm takes x with 2 or 3 axes
#include <Eigen/Core>

#include <mha/block.hpp>

auto result(const mha::RmsNorm<float>& norm, const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return norm(2 * x);
#else
  return norm((2 * x).eval());
#endif
}
