// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the gradients given to backward() are of another scalar, backend, score or kind than what is called
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
