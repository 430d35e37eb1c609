// SPDX-License-Identifier: Apache-2.0
// expect: mha: Cpu computes in float or double
#include <mha/attention.hpp>
#include <mha/backend/reference/reference.hpp>

auto result(const mha::Tensor<long double, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention<mha::Cpu>(x, x, x);
#else
  return mha::attention<mha::Reference>(x, x, x);
#endif
}
