// SPDX-License-Identifier: Apache-2.0
// expect only: mha: after the tape backward() takes gradients, mha::into(dx) or mha::add_to(dx), a Workspace and a
// backend
#include <mha/block.hpp>

auto result(const mha::Linear<float, mha::Cpu, mha::Gelu>& linear, const mha::Tensor<float, 2>& dy,
            const mha::LinearTape<float, mha::Cpu>& tape, mha::LinearGradients<float>& gradients) {
#ifdef MHA_FAIL
  return linear.backward(dy, tape, gradients, mha::residual(dy));
#else
  return linear.backward(dy, tape, gradients);
#endif
}
