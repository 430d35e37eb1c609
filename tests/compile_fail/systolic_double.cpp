// SPDX-License-Identifier: Apache-2.0
// expect: mha: Systolic multiplies bfloat16 and sums in float
#include <mha/systolic.hpp>

auto result(const mha::Tensor<double, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention<mha::Systolic<>>(x, x, x);
#else
  return mha::attention<mha::Cpu>(x, x, x);
#endif
}
