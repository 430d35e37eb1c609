// SPDX-License-Identifier: Apache-2.0
// expect only: mha: Cpu computes in float or double
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Number = mha::scaled_int8;
#else
using Number = mha::half;
#endif

auto result(const mha::MultiHeadAttention<Number>& layer, const mha::Tensor<Number, 3>& x) { return layer(x); }
