// SPDX-License-Identifier: Apache-2.0
// expect: mha: a tape records calls on x, or on x and the rows of a memory
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            mha::LayerTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer(x, layer.project_memory(x), tape);
#else
  return layer(x, x, tape);
#endif
}
