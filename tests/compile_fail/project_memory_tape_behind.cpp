// SPDX-License-Identifier: Apache-2.0
// expect: the tape of layer.memory_tape() comes next to the memory
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& memory, mha::Workspace& workspace,
            mha::MemoryTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer.project_memory(memory, workspace, tape);
#else
  return layer.project_memory(memory, tape, workspace);
#endif
}
