// SPDX-License-Identifier: Apache-2.0
// expect only: mha: residual(r) takes an r with 2 or 3 axes
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, mha::CacheOf<Layer, mha::Ring>& cache,
            [[maybe_unused]] const mha::Tensor<float, 4>& heads) {
#ifdef MHA_FAIL
  return layer.prefill(x, cache, mha::residual(heads));
#else
  return layer.prefill(x, cache, mha::residual(x));
#endif
}
