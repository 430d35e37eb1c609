// SPDX-License-Identifier: Apache-2.0
// expect: mha: what a call on a tape attends to comes next to x
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            mha::LayerTape<float, mha::Cpu>& tape, const mha::Tensor<float, 2>& keys,
            const mha::Tensor<float, 2>& values) {
#ifdef MHA_FAIL
  return layer(x, keys, tape, values);
#else
  return layer(x, keys, values, tape);
#endif
}
