// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a tape keeps no Positions
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Rotary<>>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, mha::LayerTape<float, mha::Cpu>& tape,
            [[maybe_unused]] const std::vector<int>& numbers) {
#ifdef MHA_FAIL
  return layer(x, tape, mha::Positions{numbers});
#else
  return layer(x, tape);
#endif
}
