// SPDX-License-Identifier: Apache-2.0
// expect only: mha: sum_into(s) takes an s with 2 or 3 axes
#include <mha/block.hpp>

auto result(const mha::LayerNorm<float>& norm, const mha::Tensor<float, 2>& x,
            [[maybe_unused]] mha::Tensor<float, 2>& s, [[maybe_unused]] mha::Tensor<float, 4>& heads) {
#ifdef MHA_FAIL
  return norm(x, mha::residual(x), mha::sum_into(heads));
#else
  return norm(x, mha::residual(x), mha::sum_into(s));
#endif
}
