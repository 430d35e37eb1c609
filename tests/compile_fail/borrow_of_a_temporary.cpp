// SPDX-License-Identifier: Apache-2.0
// expect: mha: borrow() of temporary weights
#include <Eigen/Core>

#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& query) {
#ifdef MHA_FAIL
  layer.borrow({.query = Eigen::MatrixXf(query.transpose())});
#else
  layer.borrow({.query = mha::transposed(mha::view(query))});
#endif
}
