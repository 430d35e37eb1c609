// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the layer's scalar and the input's differ
#include <Eigen/Core>

#include <mha/mha.hpp>

auto run(const mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXd& x) {
#ifdef MHA_FAIL
  return layer.mean_attention_weights(x);
#else
  return layer.mean_attention_weights(x.cast<float>().eval());
#endif
}
