// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize<Q>() rounds to scaled_int8 or scaled_int4; borrow() keeps weights in half and bfloat16
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Stored = mha::bfloat16;
#else
using Stored = mha::scaled_int4;
#endif

void run(mha::MultiHeadAttention<float>& layer) { layer.quantize<Stored>(); }
