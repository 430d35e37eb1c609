// SPDX-License-Identifier: Apache-2.0
// expect: a Sink, a Dropout and a Rotary are named in the layer's type
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout>& layer, const mha::Tensor<float, 3>& x) {
#ifdef MHA_FAIL
  return layer(x, mha::DropoutSeed{1}, mha::Dropout{.p = 0.1f});
#else
  return layer(x, mha::DropoutSeed{1});
#endif
}
