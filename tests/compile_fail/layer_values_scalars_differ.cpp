// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the layer's scalar and the input's differ
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x,
            const mha::Tensor<double, 3>& values) {
#ifdef MHA_FAIL
  return layer(x, x, values);
#else
  return static_cast<void>(values), layer(x, x, x);
#endif
}
