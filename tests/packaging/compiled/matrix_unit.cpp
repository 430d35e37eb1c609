// SPDX-License-Identifier: Apache-2.0
#include <mha/systolic.hpp>

#include "layers.hpp"

Numbers on_matrix_unit(const Numbers& x, const Numbers& weights) {
  mha::MultiHeadAttention<float, mha::Systolic<>, mha::Causal> layer({.d_model = width, .num_heads = heads});
  return run<float>(layer, x, weights);
}
