// SPDX-License-Identifier: Apache-2.0
// expect: a layer's part of a cache's step, step[i], or the tape
#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Contiguous, float>;

void result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& memory,
            const mha::CacheStep<Cache>& step) {
#ifdef MHA_FAIL
  static_cast<void>(layer.project_memory(memory, step));
#else
  layer.project_memory(memory, step[0]);
#endif
}
