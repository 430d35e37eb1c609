// SPDX-License-Identifier: Apache-2.0
// expect: layer.tape() makes the tape of layer(x, tape)
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x,
            [[maybe_unused]] mha::AttentionTape<float>& of_attention,
            [[maybe_unused]] mha::LayerTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer(x, mha::record(of_attention));
#else
  return layer(x, tape);
#endif
}
