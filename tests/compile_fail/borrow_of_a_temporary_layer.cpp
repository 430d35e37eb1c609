// SPDX-License-Identifier: Apache-2.0
// expect only: mha: borrow() from a temporary layer
#include <mha/mha.hpp>

mha::MultiHeadAttention<float> made();

void run(mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>& layer) {
  [[maybe_unused]] const auto owner = made();
#ifdef MHA_FAIL
  layer.borrow(made());
#else
  layer.borrow(owner);
#endif
}
