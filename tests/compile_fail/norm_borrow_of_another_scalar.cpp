// SPDX-License-Identifier: Apache-2.0
// expect only: mha: borrow() takes weights of the layer's scalar, or half and bfloat16 ones under float or double
#include <mha/block.hpp>

#ifdef MHA_FAIL
void run(mha::RmsNorm<float>& norm, const mha::BorrowedNorm<double>& stored) { norm.borrow(stored); }
#else
void run(mha::RmsNorm<float>& norm, const mha::BorrowedNorm<mha::half>& stored) { norm.borrow(stored); }
#endif
