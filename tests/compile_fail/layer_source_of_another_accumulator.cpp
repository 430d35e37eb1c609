// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a source stores keys of the layer's scalar or of another with the same accumulator
#include <mha/mha.hpp>

auto result(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x,
            [[maybe_unused]] const mha::PagedKv<double>& wide,
            [[maybe_unused]] const mha::PagedKv<mha::bfloat16>& narrow) {
#ifdef MHA_FAIL
  return layer(x, wide);
#else
  return layer(x, narrow);
#endif
}
