// SPDX-License-Identifier: Apache-2.0
// expect: mha: a DropoutSeed without a Dropout
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::DropoutSeed{1});
#else
  return mha::attention(x, x, x, mha::DropoutSeed{1}, mha::Dropout{.p = 0.2f});
#endif
}
