// SPDX-License-Identifier: Apache-2.0
// expect only: mha: AdditiveBias adds numbers to logits: a table of bool
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x, const mha::Tensor<bool, 2>& seen) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::AdditiveBias(seen));
#else
  return mha::attention(x, x, x, mha::Dense(seen));
#endif
}
