// SPDX-License-Identifier: Apache-2.0
// expect: safetensors files hold no such element type: use double, float, half, bfloat16, bool or an integer
#include <mha/io/safetensors.hpp>

auto weights(const mha::Safetensors& file) {
#ifdef MHA_FAIL
  return file.view<long double, 2>("w");
#else
  return file.view<double, 2>("w");
#endif
}
