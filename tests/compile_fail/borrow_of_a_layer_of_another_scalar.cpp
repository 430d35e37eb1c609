// SPDX-License-Identifier: Apache-2.0
// expect only: mha: borrow() of a layer of another scalar
#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer,
         const mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, mha::Causal>& other) {
#ifdef MHA_FAIL
  layer.borrow(other);
#else
  layer.borrow(other.parameters());
#endif
}
