// SPDX-License-Identifier: Apache-2.0
// expect only: mha: backward() takes gradients that gradients() of what is called has made
#include <mha/block.hpp>

auto result(const mha::Linear<float>& linear, const mha::Tensor<float, 2>& dy,
            const mha::LinearTape<float, mha::Cpu>& tape, mha::LinearGradients<float>& gradients,
            mha::LinearGradients<double>& foreign) {
#ifdef MHA_FAIL
  return gradients.clear(), linear.backward(dy, tape, foreign);
#else
  return foreign.clear(), linear.backward(dy, tape, gradients);
#endif
}
