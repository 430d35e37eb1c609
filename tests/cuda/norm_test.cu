// SPDX-License-Identifier: Apache-2.0
// Norms on the GPU, beside the reference in double.
#include "norm_checks.hpp"
#include "on_gpu.hpp"

namespace {

TEST(CudaNorm, OfFloat) {
  MHA_NEEDS_GPU();
  norm_checks::expect_norms<mha::Cuda, float>();
}
TEST(CudaNorm, OfBfloat16) {
  MHA_NEEDS_GPU();
  norm_checks::expect_norms<mha::Cuda, mha::bfloat16>();
}

}  // namespace
