// SPDX-License-Identifier: Apache-2.0
// expect: mha: after x a Linear or FeedForward takes mha::residual(r), mha::into(y), a DropoutSeed
#include <mha/block.hpp>

auto result(const mha::Linear<float>& linear, const mha::Tensor<float, 2>& x) {
#ifdef MHA_FAIL
  return linear(x, mha::Causal{});
#else
  return linear(x, mha::residual(x));
#endif
}
