// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the tape is of another scalar, backend or kind than what is called
#include <mha/block.hpp>

auto result(const mha::Linear<float>& linear, const mha::Tensor<float, 2>& x, mha::LinearTape<float, mha::Cpu>& tape,
            mha::LinearTape<double, mha::Cpu>& other) {
#ifdef MHA_FAIL
  return tape.recorded(), linear(x, other);
#else
  return other.recorded(), linear(x, tape);
#endif
}
