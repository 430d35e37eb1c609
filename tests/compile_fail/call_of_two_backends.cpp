// SPDX-License-Identifier: Apache-2.0
// expect: mha: the call names one backend type and is given the value of another
#include <mha/mha.hpp>

auto on(const mha::Tensor<float, 3>& x) {
#ifdef MHA_FAIL
  return mha::attention<mha::Cpu>(x, x, x, mha::Reference{});
#else
  return mha::attention<mha::Reference>(x, x, x, mha::Reference{});
#endif
}
