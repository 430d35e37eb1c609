// SPDX-License-Identifier: Apache-2.0
// expect only: mha: BiasGradient needs one AdditiveBias in the call
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape,
            [[maybe_unused]] const mha::Tensor<float, 2>& bias, mha::Tensor<float, 2>& g) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, mha::BiasGradient{g});
#else
  return mha::attention_backward(x, x, x, x, x, tape, mha::AdditiveBias{bias}, mha::BiasGradient{g});
#endif
}
