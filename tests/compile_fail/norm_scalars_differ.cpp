// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the norm's scalar and the input's differ
#include <Eigen/Core>

#include <mha/block.hpp>

auto result(const mha::RmsNorm<float>& norm, const Eigen::MatrixXd& x) {
#ifdef MHA_FAIL
  return norm(x);
#else
  return norm(x.cast<float>().eval());
#endif
}
