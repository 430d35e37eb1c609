// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their
#include <mha/block.hpp>
#include <mha/mha.hpp>

void run(mha::Linear<float>& linear, [[maybe_unused]] const mha::Tensor<double, 2>& wide,
         [[maybe_unused]] const mha::Tensor<mha::half, 2>& narrow) {
#ifdef MHA_FAIL
  linear.quantize(mha::BorrowedLinear<double>{.weight = wide});
#else
  linear.quantize(mha::BorrowedLinear<mha::half>{.weight = narrow});
#endif
}
