// SPDX-License-Identifier: Apache-2.0
// Linears on the GPU: products by cuBLASLt, then activation, gate and residual.
#include "linear_checks.hpp"
#include "on_gpu.hpp"

namespace {

TEST(CudaLinear, OfBfloat16) {
  MHA_NEEDS_GPU();
  linear_checks::expect_blocks<mha::Cuda, mha::bfloat16>("cuda linear bfloat16");
}
TEST(CudaLinear, OfFloat) {
  MHA_NEEDS_GPU();
  linear_checks::expect_blocks<mha::Cuda, float>("cuda linear float");
}
TEST(CudaLinear, OfDouble) {
  MHA_NEEDS_GPU();
  linear_checks::expect_blocks<mha::Cuda, double>("cuda linear double");
}

}  // namespace
