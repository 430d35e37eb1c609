// SPDX-License-Identifier: Apache-2.0
// expect: mha: one of KeyValueGradients and mha::StopGradient{} may be given once
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& dy, const Layer::Tape& tape, Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape, d, mha::StopGradient{});
#else
  return layer.backward(dy, tape, d);
#endif
}
