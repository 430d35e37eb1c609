// SPDX-License-Identifier: Apache-2.0
// expect: mha: a layer call takes its own part of a cache's step
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x, mha::KvCache<mha::Contiguous, float>& cache) {
#ifdef MHA_FAIL
  return layer(x, cache);
#else
  return layer.prefill(x, cache);
#endif
}
