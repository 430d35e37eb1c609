// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a call records on a tape that has a name and is not const
#include <mha/block.hpp>

auto result(const mha::FeedForward<float>& feed_forward, const mha::Tensor<float, 2>& x,
            [[maybe_unused]] const mha::FeedForwardTape<float, mha::Cpu>& constant,
            [[maybe_unused]] mha::FeedForwardTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return feed_forward(x, constant);
#else
  return feed_forward(x, tape);
#endif
}
