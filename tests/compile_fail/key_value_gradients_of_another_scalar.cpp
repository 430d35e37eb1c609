// SPDX-License-Identifier: Apache-2.0
// expect: mha: backward() takes KeyValueGradients that key_value_gradients() of the layer has made
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& dy, const Layer::Tape& tape,
            [[maybe_unused]] mha::KeyValueGradients<double, mha::Cpu>& foreign, Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, foreign);
#else
  return layer.backward(dy, tape, d);
#endif
}
