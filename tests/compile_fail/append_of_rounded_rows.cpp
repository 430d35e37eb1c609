// SPDX-License-Identifier: Apache-2.0
// expect: mha: append() takes numbers, which a cache of scaled_int8 rounds itself
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Number = mha::scaled_int8;
#else
using Number = mha::half;
#endif

void append(const mha::CacheStep<mha::KvCache<mha::Contiguous, mha::scaled_int8>>& step,
            const mha::Tensor<Number, 3>& rows) {
  step.append(0, rows, rows);
}
