// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a source stores keys of the call's scalar or of another with the same accumulator
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Stored = mha::scaled_int4;
#else
using Stored = mha::scaled_int8;
#endif

auto result(const mha::Tensor<float, 4>& q, const mha::ContiguousKv<Stored>& rows) { return mha::attention(q, rows); }
