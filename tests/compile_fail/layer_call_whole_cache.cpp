// SPDX-License-Identifier: Apache-2.0
// expect: mha: a layer call takes its own part of a cache's step
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>;

void read(const Layer& layer, const mha::Tensor<float, 3>& x, mha::KvCache<mha::Contiguous, float>& cache,
          const mha::SequenceId& id) {
  auto step = cache.step(id, 1);
#ifdef MHA_FAIL
  static_cast<void>(layer(x, step));
#else
  static_cast<void>(layer(x, step[0]));
#endif
  step.commit();
}
