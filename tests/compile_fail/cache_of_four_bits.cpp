// SPDX-License-Identifier: Apache-2.0
// expect: mha: scaled_int4 is of weights; a cache stores keys and values in scaled_int8, half, bfloat16 or the layer's
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Stored = mha::scaled_int4;
#else
using Stored = mha::scaled_int8;
#endif

auto cache_of(const mha::MultiHeadAttention<float>& layer) {
  return mha::make_cache<Stored>(layer, mha::Contiguous{.length = 4});
}
