// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a call on a tape reads a temporary x
#include <mha/block.hpp>

auto result(const mha::Linear<float, mha::Cpu, mha::Gelu>& linear, const mha::Tensor<float, 2>& x,
            mha::LinearTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return linear(mha::Tensor<float, 2>(x), tape);
#else
  return linear(x, tape);
#endif
}
