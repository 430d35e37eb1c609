// SPDX-License-Identifier: Apache-2.0
// expect: mha: the tape of project_memory() is of another scalar or backend than the layer
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& memory,
            [[maybe_unused]] mha::MemoryTape<double, mha::Cpu>& foreign,
            [[maybe_unused]] mha::MemoryTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer.project_memory(memory, foreign);
#else
  return layer.project_memory(memory, tape);
#endif
}
