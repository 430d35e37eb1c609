// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the layer's scalar and the input's differ
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x, [[maybe_unused]] const mha::Tensor<double, 3>& y) {
#ifdef MHA_FAIL
  return layer(x, y);
#else
  return layer(x, x);
#endif
}
