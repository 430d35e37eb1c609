// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their
#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Weights = mha::BorrowedWeights<double>;
#else
using Weights = mha::BorrowedWeights<mha::bfloat16>;
#endif

void run(mha::MultiHeadAttention<float>& layer, const Weights& weights) { layer.quantize(weights); }
