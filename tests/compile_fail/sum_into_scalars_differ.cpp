// SPDX-License-Identifier: Apache-2.0
// expect only: mha: sum_into(s) has another scalar than the layer
#include <mha/block.hpp>

auto result(const mha::LayerNorm<float>& norm, const mha::Tensor<float, 2>& x,
            [[maybe_unused]] mha::Tensor<float, 2>& s, [[maybe_unused]] mha::Tensor<double, 2>& wide) {
#ifdef MHA_FAIL
  return norm(x, mha::residual(x), mha::sum_into(wide));
#else
  return norm(x, mha::residual(x), mha::sum_into(s));
#endif
}
