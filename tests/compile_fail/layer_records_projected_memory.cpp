// SPDX-License-Identifier: Apache-2.0
// expect: mha: a call on a tape reads what a temporary project_memory() returned
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, Layer::Tape& tape,
            [[maybe_unused]] const Layer::KeyValues& projected) {
#ifdef MHA_FAIL
  return layer(x, layer.project_memory(x), tape);
#else
  return layer(x, projected, tape);
#endif
}
