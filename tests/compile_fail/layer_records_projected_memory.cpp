// SPDX-License-Identifier: Apache-2.0
// expect: mha: a call on a tape reads what a temporary project_memory() returned
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            mha::LayerTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer(x, layer.project_memory(x), tape);
#else
  const auto projected = layer.project_memory(x);
  return layer(x, projected, tape);
#endif
}
