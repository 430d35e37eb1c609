// SPDX-License-Identifier: Apache-2.0
// expect only: mha: backward() takes dy with 2 or 3 axes and the scalar of what is called
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, [[maybe_unused]] const mha::Tensor<float, 2>& dy,
            [[maybe_unused]] const mha::Tensor<double, 2>& wide, const mha::LayerTape<float, mha::Cpu>& tape,
            mha::LayerGradients<float>& gradients) {
#ifdef MHA_FAIL
  return layer.backward(wide, tape, gradients);
#else
  return layer.backward(dy, tape, gradients);
#endif
}
