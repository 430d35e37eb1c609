// SPDX-License-Identifier: Apache-2.0
// expect only: mha: SinkGradient without the Sink that it is the gradient of
#include <mha/mha.hpp>

void result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape,
            [[maybe_unused]] const mha::Sink& sink, mha::Tensor<float, 1>& d_sink) {
#ifdef MHA_FAIL
  mha::attention_backward_into({}, x, x, x, x, x, tape, mha::SinkGradient(d_sink));
#else
  mha::attention_backward_into({}, x, x, x, x, x, tape, sink, mha::SinkGradient(d_sink));
#endif
}
