// SPDX-License-Identifier: Apache-2.0
// expect: mha: after the tensors attention takes masks, scores
#include <mha/attention.hpp>

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, 0.5);
#else
  return mha::attention(x, x, x, mha::Scale{0.5});
#endif
}
