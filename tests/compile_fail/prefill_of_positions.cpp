// SPDX-License-Identifier: Apache-2.0
// expect only: mha: prefill() may take several steps, Positions are those of one
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Rotary<>>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, mha::CacheOf<Layer, mha::Ring>& cache,
            const std::vector<int>& numbers) {
#ifdef MHA_FAIL
  return layer.prefill(x, cache, mha::Positions{numbers});
#else
  return layer.step(x, cache, mha::Positions{numbers});
#endif
}
