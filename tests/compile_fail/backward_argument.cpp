// SPDX-License-Identifier: Apache-2.0
// expect: mha: after the tape attention_backward takes
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape,
            [[maybe_unused]] mha::Tensor<float, 3>& lse) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, mha::LogSumExp{lse});
#else
  return mha::attention_backward(x, x, x, x, x, tape, mha::LogSumExpGradient{lse});
#endif
}
