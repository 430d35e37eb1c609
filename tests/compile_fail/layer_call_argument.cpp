// SPDX-License-Identifier: Apache-2.0
// expect: mha: after its tensors a layer call takes masks, scores
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x) {
#ifdef MHA_FAIL
  return layer(x, mha::Scale{0.5});
#else
  return layer(x, mha::Causal{});
#endif
}
