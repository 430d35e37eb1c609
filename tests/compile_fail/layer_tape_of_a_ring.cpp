// SPDX-License-Identifier: Apache-2.0
// expect: mha: a tape records no call over a source that drops keys
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

auto result(const Layer& layer, const mha::Tensor<float, 3>& x, [[maybe_unused]] const mha::RingKv<float>& ring,
            [[maybe_unused]] const mha::PagedKv<float>& pages, Layer::Tape& tape) {
#ifdef MHA_FAIL
  return layer(x, ring, tape);
#else
  return layer(x, pages, tape);
#endif
}
