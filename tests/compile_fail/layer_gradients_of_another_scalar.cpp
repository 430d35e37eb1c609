// SPDX-License-Identifier: Apache-2.0
// expect only: mha: backward() takes gradients that gradients() of what is called has made
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& dy,
            const mha::LayerTape<float, mha::Cpu>& tape, mha::LayerGradients<float>& gradients,
            mha::LayerGradients<double>& foreign) {
#ifdef MHA_FAIL
  return gradients.clear(), layer.backward(dy, tape, foreign);
#else
  return foreign.clear(), layer.backward(dy, tape, gradients);
#endif
}
