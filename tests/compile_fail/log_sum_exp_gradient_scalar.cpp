// SPDX-License-Identifier: Apache-2.0
// expect only: mha: LogSumExpGradient has the accumulator's scalar
#include <mha/mha.hpp>

auto result(const mha::Tensor<mha::half, 4>& x, const mha::AttentionTape<mha::half, mha::Reference>& tape,
            [[maybe_unused]] const mha::Tensor<mha::half, 3>& narrow,
            [[maybe_unused]] const mha::Tensor<float, 3>& wide) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, mha::LogSumExpGradient(narrow));
#else
  return mha::attention_backward(x, x, x, x, x, tape, mha::LogSumExpGradient(wide));
#endif
}
