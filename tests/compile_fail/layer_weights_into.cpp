// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention_weights returns the weights and writes nothing else
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x,
            [[maybe_unused]] mha::Tensor<float, 3>& y) {
#ifdef MHA_FAIL
  return layer.attention_weights(x, mha::into(y));
#else
  return layer.attention_weights(x);
#endif
}
