// SPDX-License-Identifier: Apache-2.0
// expect only: mha: backward() takes gradients that gradients() of what is called has made
#include <mha/block.hpp>

auto result(const mha::FeedForward<float>& ff, const mha::Tensor<float, 2>& dy,
            const mha::FeedForwardTape<float, mha::Cpu>& tape, mha::FeedForwardGradients<float>& gradients,
            mha::LinearGradients<float>& foreign) {
#ifdef MHA_FAIL
  return gradients.clear(), ff.backward(dy, tape, foreign);
#else
  return foreign.clear(), ff.backward(dy, tape, gradients);
#endif
}
