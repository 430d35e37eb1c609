// SPDX-License-Identifier: Apache-2.0
// expect: mha: the step of a cache comes next to x, in the place of a memory
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x,
            mha::LayerTape<float, mha::Cpu>& tape, const mha::CacheStep<mha::KvCache<mha::Contiguous, float>>& step) {
#ifdef MHA_FAIL
  return layer(x, tape, step[0]);
#else
  return layer(x, step[0], tape);
#endif
}
