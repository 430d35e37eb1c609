// SPDX-License-Identifier: Apache-2.0
// expect: mha: into(y) of a temporary y
#include <Eigen/Core>

#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

void run(const Layer& layer, const Eigen::MatrixXf& x, [[maybe_unused]] const Eigen::MatrixXf& y,
         [[maybe_unused]] Eigen::MatrixXf& z) {
#ifdef MHA_FAIL
  layer(x, mha::into(Eigen::MatrixXf(4, 8)));
#else
  layer(x, mha::into(z));
#endif
}
