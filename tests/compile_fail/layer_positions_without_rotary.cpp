// SPDX-License-Identifier: Apache-2.0
// expect only: mha: Positions for a layer whose type names no policy of positions
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Layer = mha::MultiHeadAttention<float>;
#else
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Rotary<>>;
#endif

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, const std::vector<int>& numbers) {
  return layer(x, mha::Positions{numbers});
}
