// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a functor is neither a mask, 'bool operator()(Index b, Index h, Index q, Index k)
#include <Eigen/Core>

#include <mha/mha.hpp>

auto run(const mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return layer(x, [](float s, int q, int k) { return s - float(q - k); });
#else
  return layer(x, [](float s, int, int, int q, int k) { return s - float(q - k); });
#endif
}
