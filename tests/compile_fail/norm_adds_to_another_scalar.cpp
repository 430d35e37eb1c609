// SPDX-License-Identifier: Apache-2.0
// expect only: mha: add_to(dx) of a backward pass takes rows of the scalar of what is called
#include <mha/block.hpp>

void use(const mha::LayerNorm<float>& norm, const mha::Tensor<float, 2>& dy, const mha::NormTape<float, mha::Cpu>& tape,
         mha::NormGradients<float>& gradients, [[maybe_unused]] mha::Tensor<double, 2>& wide,
         [[maybe_unused]] mha::Tensor<float, 2>& dx) {
#ifdef MHA_FAIL
  norm.backward(dy, tape, gradients, mha::add_to(wide));
#else
  norm.backward(dy, tape, gradients, mha::add_to(dx));
#endif
}
