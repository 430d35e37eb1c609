// SPDX-License-Identifier: Apache-2.0
// expect: mha: prefill() may take several steps and writes no log-sum-exp: give it to a step
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;
using Cache = mha::KvCache<mha::Contiguous, float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, Cache& cache, mha::Tensor<float, 2>& lse) {
#ifdef MHA_FAIL
  return layer.prefill(x, cache, mha::LogSumExp(lse));
#else
  return layer.step(x, cache, mha::LogSumExp(lse));
#endif
}
