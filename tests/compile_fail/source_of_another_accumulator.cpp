// SPDX-License-Identifier: Apache-2.0
// expect: mha: a source stores keys of the call's scalar or of another with the same accumulator
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& q, [[maybe_unused]] const mha::RingKv<double>& wide,
            [[maybe_unused]] const mha::RingKv<mha::bfloat16>& narrow) {
#ifdef MHA_FAIL
  return mha::attention(q, wide);
#else
  return mha::attention(q, narrow);
#endif
}
