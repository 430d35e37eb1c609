// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their
#include <mha/block.hpp>
#include <mha/mha.hpp>

void run(mha::Linear<double>& linear, [[maybe_unused]] const mha::LinearViews<const int>& integers,
         [[maybe_unused]] const mha::LinearViews<const double>& numbers) {
#ifdef MHA_FAIL
  linear.quantize(integers);
#else
  linear.quantize(numbers);
#endif
}
