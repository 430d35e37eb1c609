// SPDX-License-Identifier: Apache-2.0
// expect: mha: backward() adds to KeyValueGradients that have a name and are not const
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& dy, const Layer::Tape& tape,
            [[maybe_unused]] Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, layer.key_value_gradients(1, 8));
#else
  return layer.backward(dy, tape, d);
#endif
}
