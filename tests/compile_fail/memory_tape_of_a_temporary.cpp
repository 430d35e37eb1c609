// SPDX-License-Identifier: Apache-2.0
// expect: mha: project_memory() records on a tape that has a name and is not const
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& memory,
            [[maybe_unused]] mha::MemoryTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer.project_memory(memory, layer.memory_tape());
#else
  return layer.project_memory(memory, tape);
#endif
}
