// SPDX-License-Identifier: Apache-2.0
// expect only: mha: borrow() takes weights of the layer's scalar, or half and bfloat16 ones under float or double
#include <mha/block.hpp>
#include <mha/mha.hpp>

void run(mha::Linear<float>& linear, [[maybe_unused]] const mha::Tensor<double, 2>& wide,
         [[maybe_unused]] const mha::Tensor<mha::half, 2>& narrow) {
#ifdef MHA_FAIL
  linear.borrow(mha::BorrowedLinear<double>{.weight = wide});
#else
  linear.borrow(mha::BorrowedLinear<mha::half>{.weight = narrow});
#endif
}
