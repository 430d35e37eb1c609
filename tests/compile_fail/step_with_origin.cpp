// SPDX-License-Identifier: Apache-2.0
// expect: mha: a step of a cache knows the rows and positions of its sequences: give the layer neither Ragged nor
// Origin
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;
using Cache = mha::KvCache<mha::Contiguous, float>;

auto result(const Layer& layer, const mha::Tensor<float, 2>& x, Cache& cache) {
#ifdef MHA_FAIL
  return layer.step(x, cache, mha::Origin{3});
#else
  return layer.step(x, cache, mha::Causal{});
#endif
}
