// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention takes tensors with 2 to 4 axes
#include <vector>

#include <mha/mha.hpp>

auto result(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v) {
#ifdef MHA_FAIL
  return mha::attention(q, k, v, mha::Causal{});
#else
  return mha::attention(mha::view(q.data(), 6, 4), mha::view(k.data(), 6, 4), mha::view(v.data(), 6, 4), mha::Causal{});
#endif
}
