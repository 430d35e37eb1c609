// SPDX-License-Identifier: Apache-2.0
// expect: mha: Cpu computes in float or double
#include <mha/mha.hpp>

auto result(const mha::Tensor<long double, 3>& x) {
#ifdef MHA_FAIL
  const mha::MultiHeadAttention<long double, mha::Cpu> layer({.d_model = 8, .num_heads = 2});
#else
  const mha::MultiHeadAttention<long double, mha::Reference> layer({.d_model = 8, .num_heads = 2});
#endif
  return layer(x);
}
