// SPDX-License-Identifier: Apache-2.0
// expect only: mha: mha::record(tape) is for the tape of attention()
#include <mha/mha.hpp>

void train(const mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>& layer, const mha::Tensor<float, 2>& x) {
  auto tape = layer.tape();
#ifdef MHA_FAIL
  static_cast<void>(layer(x, mha::record(tape)));
#else
  static_cast<void>(layer(x, tape));
#endif
}
