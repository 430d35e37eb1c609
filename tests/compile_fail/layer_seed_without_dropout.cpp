// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a DropoutSeed for a layer without Dropout
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 3>& x) {
#ifdef MHA_FAIL
  const mha::MultiHeadAttention<float> layer({.d_model = 8, .num_heads = 2});
#else
  const mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout> layer({.d_model = 8}, mha::Dropout{.p = 0.1f});
#endif
  return layer(x, mha::DropoutSeed{1});
}
