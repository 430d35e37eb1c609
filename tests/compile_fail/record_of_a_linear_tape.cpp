// SPDX-License-Identifier: Apache-2.0
// expect only: mha: mha::record(tape) is for the tape of attention()
#include <mha/block.hpp>

void train(const mha::Linear<float>& linear, const mha::Tensor<float, 2>& x) {
  auto tape = linear.tape();
#ifdef MHA_FAIL
  static_cast<void>(linear(x, mha::record(tape)));
#else
  static_cast<void>(linear(x, tape));
#endif
}
