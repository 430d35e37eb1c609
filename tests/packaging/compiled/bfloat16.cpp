// SPDX-License-Identifier: Apache-2.0
#include "layers.hpp"

Numbers in_bfloat16(const Numbers& x, const Numbers& weights) {
  mha::MultiHeadAttention<mha::bfloat16, mha::CpuWith<mha::Serial>, mha::Causal> layer(
      {.d_model = width, .num_heads = heads});
  return run<mha::bfloat16>(layer, x, weights);
}
