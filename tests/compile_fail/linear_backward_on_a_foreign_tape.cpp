// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the tape given to backward() is of another scalar, backend or kind than what is called
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
