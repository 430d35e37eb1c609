// SPDX-License-Identifier: Apache-2.0
// expect: mha: project_memory into a cache takes a Workspace and a backend
#include <mha/mha.hpp>

using Cache = mha::KvCache<mha::Contiguous, float>;

void result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& memory,
            const mha::LayerStep<Cache>& step) {
#ifdef MHA_FAIL
  layer.project_memory(memory, step, mha::Origin{3});
#else
  layer.project_memory(memory, step);
#endif
}
