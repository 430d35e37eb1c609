// SPDX-License-Identifier: Apache-2.0
// expect only: mha: residual(r) has another scalar than the layer
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, mha::CacheOf<Layer, mha::Ring>& cache,
            [[maybe_unused]] const mha::Tensor<double, 2>& wide) {
#ifdef MHA_FAIL
  return layer.prefill(x, cache, mha::residual(wide));
#else
  return layer.prefill(x, cache, mha::residual(x));
#endif
}
