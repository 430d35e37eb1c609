// SPDX-License-Identifier: Apache-2.0
// expect only: mha: p.query, key, value and output are written from a matrix
#include <Eigen/Core>

#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const Eigen::MatrixXf& m) {
#ifdef MHA_FAIL
  layer.update([&](auto& p) { p.query = 2 * m; });
#else
  layer.update([&](auto& p) { p.query = (2 * m).eval(); });
#endif
}
