// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the memory of cross-attention comes next to x
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x, const mha::Tensor<float, 3>& memory) {
#ifdef MHA_FAIL
  return layer(x, mha::Causal{}, memory);
#else
  return layer(x, memory, mha::Causal{});
#endif
}
