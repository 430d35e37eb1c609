// SPDX-License-Identifier: Apache-2.0
// expect: mha: borrow() takes weights of the layer's scalar
#include <Eigen/Core>

#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, [[maybe_unused]] const Eigen::MatrixXd& wide,
         [[maybe_unused]] const Eigen::MatrixXf& query) {
#ifdef MHA_FAIL
  layer.borrow({.query = wide});
#else
  layer.borrow({.query = query});
#endif
}
