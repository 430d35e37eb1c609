// SPDX-License-Identifier: Apache-2.0
// expect: mha: this backend has no default constructor: give its value to the call
#include <mha/mha.hpp>

struct Fixed : mha::Serial {
  explicit Fixed(int) {}
};

auto on(const mha::Tensor<float, 3>& x) {
#ifdef MHA_FAIL
  return mha::attention<mha::CpuWith<Fixed>>(x, x, x);
#else
  return mha::attention(x, x, x, mha::CpuWith(Fixed(3)));
#endif
}
