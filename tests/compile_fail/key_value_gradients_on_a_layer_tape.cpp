// SPDX-License-Identifier: Apache-2.0
// expect: mha: backward() of KeyValueGradients takes the tape of project_memory()
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, [[maybe_unused]] const Layer::Tape& other,
            [[maybe_unused]] const mha::MemoryTape<float, mha::Cpu>& tape, const Layer::KeyValueGradients& d) {
#ifdef MHA_FAIL
  return layer.backward(d, other);
#else
  return layer.backward(d, tape);
#endif
}
