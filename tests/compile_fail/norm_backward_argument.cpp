// SPDX-License-Identifier: Apache-2.0
// expect only: mha: after the tape backward() of a norm takes gradients, mha::into(dx) or mha::add_to(dx)
#include <mha/block.hpp>

auto result(const mha::LayerNorm<float>& norm, const mha::Tensor<float, 2>& dy,
            const mha::NormTape<float, mha::Cpu>& tape, mha::NormGradients<float>& gradients) {
#ifdef MHA_FAIL
  return norm.backward(dy, tape, gradients, mha::residual(dy));
#else
  return norm.backward(dy, tape, gradients);
#endif
}
