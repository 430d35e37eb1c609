// SPDX-License-Identifier: Apache-2.0
// expect: mha: borrow() takes views: mha::view(pointer, in, out)
#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const float* query) {
#ifdef MHA_FAIL
  layer.borrow({.query = query});
#else
  layer.borrow({.query = mha::view(query, 8, 8)});
#endif
}
