// SPDX-License-Identifier: Apache-2.0
// expect: mha: a Linear or FeedForward takes x with 2 or 3 axes
#include <Eigen/Core>

#include <mha/block.hpp>

Eigen::MatrixXf result(const mha::FeedForward<float>& ff, const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return ff(2 * x);
#else
  return ff((2 * x).eval());
#endif
}
