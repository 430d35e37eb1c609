// SPDX-License-Identifier: Apache-2.0
// expect: mha: backward() of a recorded project_memory() takes KeyValueGradients and a tape of the layer's
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, [[maybe_unused]] const mha::MemoryTape<double, mha::Cpu>& foreign,
            [[maybe_unused]] const mha::MemoryTape<float, mha::Cpu>& tape, const Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(d, foreign);
#else
  return layer.backward(d, tape);
#endif
}
