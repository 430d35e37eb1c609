// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention_weights needs q and k of one scalar type
#include <mha/attention.hpp>

auto result(const mha::Tensor<float, 4>& x, [[maybe_unused]] const mha::Tensor<double, 4>& y) {
#ifdef MHA_FAIL
  return mha::attention_weights(x, y);
#else
  return mha::attention_weights(x, x);
#endif
}
