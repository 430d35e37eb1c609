// SPDX-License-Identifier: Apache-2.0
// expect only: mha: into(y) has another scalar than the layer
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x, [[maybe_unused]] mha::Tensor<double, 3>& y,
            [[maybe_unused]] mha::Tensor<float, 3>& z) {
#ifdef MHA_FAIL
  return layer(x, mha::into(y));
#else
  return layer(x, mha::into(z));
#endif
}
