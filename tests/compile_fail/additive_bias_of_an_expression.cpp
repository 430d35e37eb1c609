// SPDX-License-Identifier: Apache-2.0
// expect only: mha: AdditiveBias takes a table of numbers with 2 to 4 axes
#include <Eigen/Core>

#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 2>& x, const Eigen::MatrixXf& table) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::AdditiveBias{2 * table});
#else
  return mha::attention(x, x, x, mha::AdditiveBias{table});
#endif
}
