// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their
#include <mha/block.hpp>
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Number = mha::half;
#else
using Number = float;
#endif

void run(mha::Linear<Number>& linear) { linear.quantize(); }
