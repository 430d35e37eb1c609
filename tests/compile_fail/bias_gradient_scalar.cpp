// SPDX-License-Identifier: Apache-2.0
// expect only: mha: BiasGradient has the scalar of the bias or the accumulator's
#include <mha/mha.hpp>

auto result(const mha::Tensor<mha::half, 4>& x, const mha::AttentionTape<mha::half, mha::Reference>& tape,
            const mha::Tensor<mha::half, 2>& bias, [[maybe_unused]] mha::Tensor<double, 2>& foreign,
            [[maybe_unused]] mha::Tensor<float, 2>& wide) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, mha::AdditiveBias{bias}, mha::BiasGradient{foreign});
#else
  return mha::attention_backward(x, x, x, x, x, tape, mha::AdditiveBias{bias}, mha::BiasGradient{wide});
#endif
}
