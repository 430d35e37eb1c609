// SPDX-License-Identifier: Apache-2.0
// expect: mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention<mha::Systolic<>>(x, x, x);
#else
  return mha::attention<mha::Reference>(x, x, x);
#endif
}
