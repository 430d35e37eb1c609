// SPDX-License-Identifier: Apache-2.0
// expect only: mha: memory_into(m) has another scalar than the layer
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& dy,
            const mha::LayerTape<float, mha::Cpu>& tape, mha::LayerGradients<float>& gradients,
            [[maybe_unused]] mha::Tensor<double, 2>& foreign, [[maybe_unused]] mha::Tensor<float, 2>& own) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, gradients, mha::memory_into(foreign));
#else
  return layer.backward(dy, tape, gradients, mha::memory_into(own));
#endif
}
