// SPDX-License-Identifier: Apache-2.0
// expect: mha: backward() of a recorded project_memory() takes KeyValueGradients
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, [[maybe_unused]] const mha::Tensor<float, 2>& dy,
            const mha::MemoryTape<float, mha::Cpu>& tape, [[maybe_unused]] const Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(dy, tape);
#else
  return layer.backward(d, tape);
#endif
}
