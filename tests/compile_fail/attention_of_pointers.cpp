// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention takes tensors with 2 to 4 axes
#include <mha/mha.hpp>

void run(float* out, const float* q, const float* k, const float* v) {
#ifdef MHA_FAIL
  mha::attention_into(out, q, k, v);
#else
  mha::attention_into(mha::view(out, 6, 4), mha::view(q, 6, 4), mha::view(k, 6, 4), mha::view(v, 6, 4));
#endif
}
