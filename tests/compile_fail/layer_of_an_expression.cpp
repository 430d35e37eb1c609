// SPDX-License-Identifier: Apache-2.0
// expect: deleted function
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return layer(2 * x);
#else
  return layer((2 * x).eval());
#endif
}
