// SPDX-License-Identifier: Apache-2.0
// expect: mha: after the tape backward() takes gradients
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& dy,
            const mha::LayerTape<float, mha::Cpu>& tape, mha::LayerGradients<float>& gradients) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, gradients, mha::Causal{});
#else
  return layer.backward(dy, tape, gradients);
#endif
}
