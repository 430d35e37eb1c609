// SPDX-License-Identifier: Apache-2.0
// expect only: mha: step(), prefill() and attention_weights() do not record
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;
using Rows = mha::Tensor<float, 2>;

auto run(const Layer& layer, const Rows& x, mha::CacheOf<Layer, mha::Contiguous>& cache, Layer::Tape& tape) {
#ifdef MHA_FAIL
  return layer.step(x, cache, tape);
#else
  return layer(x, cache.step(1)[0], tape);
#endif
}
