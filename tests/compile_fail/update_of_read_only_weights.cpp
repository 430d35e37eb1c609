// SPDX-License-Identifier: Apache-2.0
// expect only: mha: parameters() are read-only
#include <Eigen/Core>

#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& m) {
#ifdef MHA_FAIL
  layer.parameters().output = m;
#else
  layer.update([&](auto& p) { p.output = m; });
#endif
}
