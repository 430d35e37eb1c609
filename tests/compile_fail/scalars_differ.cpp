// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention needs q, k, v and out of one scalar type
#include <mha/attention.hpp>

auto result(const mha::Tensor<float, 4>& x, [[maybe_unused]] const mha::Tensor<double, 4>& y) {
#ifdef MHA_FAIL
  return mha::attention(x, x, y);
#else
  return mha::attention(x, x, x);
#endif
}
