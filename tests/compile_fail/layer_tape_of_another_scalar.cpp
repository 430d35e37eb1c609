// SPDX-License-Identifier: Apache-2.0
// expect: mha: the tape is of another scalar, backend or kind than what is called
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            [[maybe_unused]] mha::LayerTape<double, mha::Cpu>& foreign,
            [[maybe_unused]] mha::LayerTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer(x, foreign);
#else
  return layer(x, tape);
#endif
}
