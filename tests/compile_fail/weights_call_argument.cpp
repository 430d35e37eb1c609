// SPDX-License-Identifier: Apache-2.0
// expect: mha: after the tensors attention takes masks, scores
#include <mha/attention.hpp>

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention_weights(x, x, true);
#else
  return mha::attention_weights(x, x, mha::Causal{});
#endif
}
