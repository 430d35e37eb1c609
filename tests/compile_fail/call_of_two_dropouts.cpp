// SPDX-License-Identifier: Apache-2.0
// expect only: mha: two dropouts, or two seeds of one: keep one
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::Dropout{.p = 0.1f}, mha::Dropout{.p = 0.2f}, mha::DropoutSeed{1});
#else
  return mha::attention(x, x, x, mha::Dropout{.p = 0.2f}, mha::DropoutSeed{1});
#endif
}
