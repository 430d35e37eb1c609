// SPDX-License-Identifier: Apache-2.0
// expect: mha: the cache's scalar has another accumulator than the layer's
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Cache = mha::KvCache<mha::Contiguous, double>;
#else
using Cache = mha::KvCache<mha::Contiguous, mha::bfloat16>;
#endif

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 2>& x, Cache& cache) {
  return layer.step(x, cache);
}
