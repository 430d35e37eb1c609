// SPDX-License-Identifier: Apache-2.0
// expect only: mha: memory_into(m) takes an m with 2 or 3 axes
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& dy,
            const mha::LayerTape<float, mha::Cpu>& tape, mha::LayerGradients<float>& gradients,
            [[maybe_unused]] mha::Tensor<float, 4>& heads, [[maybe_unused]] mha::Tensor<float, 2>& own) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, gradients, mha::memory_into(heads));
#else
  return layer.backward(dy, tape, gradients, mha::memory_into(own));
#endif
}
