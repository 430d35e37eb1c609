// SPDX-License-Identifier: Apache-2.0
// expect: mha: a call on a tape reads a temporary x or memory
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& keys,
            mha::MemoryTape<float, mha::Cpu>& tape) {
#ifdef MHA_FAIL
  return layer.project_memory(keys, mha::Tensor<float, 2>(keys), tape);
#else
  return layer.project_memory(keys, keys, tape);
#endif
}
