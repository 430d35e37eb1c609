// SPDX-License-Identifier: Apache-2.0
// expect: mha: a call on a tape reads a temporary x or memory
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            mha::LayerTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer(mha::Tensor<float, 2>(x), tape);
#else
  return layer(x, tape);
#endif
}
