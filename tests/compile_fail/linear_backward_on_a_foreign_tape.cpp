// SPDX-License-Identifier: Apache-2.0
// expect only: mha: backward() takes a tape that tape() of what is called has made
#include <mha/block.hpp>

auto result(const mha::Linear<float>& linear, const mha::Tensor<float, 2>& dy,
            const mha::LinearTape<float, mha::Cpu>& tape, const mha::LinearTape<float, mha::Reference>& foreign,
            mha::LinearGradients<float>& gradients) {
#ifdef MHA_FAIL
  return tape.recorded(), linear.backward(dy, foreign, gradients);
#else
  return foreign.recorded(), linear.backward(dy, tape, gradients);
#endif
}
