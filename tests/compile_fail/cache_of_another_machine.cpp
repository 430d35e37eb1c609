// SPDX-License-Identifier: Apache-2.0
// expect: mha: the KvCache is in the memory of another machine than the one this backend computes on
#include <mha/attention.hpp>
#include <mha/layer/kv_cache.hpp>
#include <mha/layer/multi_head_attention.hpp>

#include "../support/far_backend.hpp"

#ifdef MHA_FAIL
using Cache = mha::KvCache<mha::Contiguous, float>;
#else
using Cache = mha::KvCache<mha::Contiguous, float, support::Far>;
#endif

auto result(const mha::MultiHeadAttention<float, support::Far>& layer, const support::FarTensor<float, 2>& x,
            Cache& cache) {
  return layer(x, cache.step(1)[0]);
}
