// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a cache is told how it stores positions
#include <mha/mha.hpp>

void make(const mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>& layer) {
#ifdef MHA_FAIL
  static_cast<void>(mha::make_cache(layer, 128));
#else
  static_cast<void>(mha::make_cache(layer, mha::Contiguous{.length = 128}));
#endif
}
