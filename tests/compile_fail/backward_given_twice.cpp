// SPDX-License-Identifier: Apache-2.0
// expect only: mha: Scale, Origin, Ragged, LogSumExpGradient, SinkGradient, BiasGradient, ScoreGradient, a Sink, a
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape,
            const mha::LogSumExpGradient<float>& d_lse) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, d_lse, d_lse);
#else
  return mha::attention_backward(x, x, x, x, x, tape, d_lse);
#endif
}
