// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt itself; unit/backend/cuda has those of an imitation.
#include <gtest/gtest.h>

#include <mha/backend/cuda/cuda.cuh>

#include "gemm_checks.hpp"
#include "gpu.hpp"

namespace {

TEST(CudaGemm, ProductsOfFloatAreFloats) {
  MHA_NEEDS_GPU();
  gemm_checks::expect_products<mha::Cuda, float>("cuda products float");
}
TEST(CudaGemm, ProductsOfDouble) {
  MHA_NEEDS_GPU();
  gemm_checks::expect_products<mha::Cuda, double>("cuda products double");
}
TEST(CudaGemm, ProductsOfSixteenBits) {
  MHA_NEEDS_GPU();
  gemm_checks::expect_products<mha::Cuda, mha::bfloat16>("cuda products bfloat16");
  gemm_checks::expect_products<mha::Cuda, mha::half>("cuda products half");
}

TEST(CudaGemm, SumsOfGradients) {
  MHA_NEEDS_GPU();
  gemm_checks::expect_sums<mha::Cuda, float>("cuda sums float");
  gemm_checks::expect_sums<mha::Cuda, double>("cuda sums double");
  gemm_checks::expect_sums<mha::Cuda, mha::bfloat16>("cuda sums bfloat16");
  gemm_checks::expect_sums<mha::Cuda, mha::half>("cuda sums half");
}

TEST(CudaGemm, ResidualsAreAddedOnTheWay) {
  MHA_NEEDS_GPU();
  gemm_checks::expect_residuals<mha::Cuda, float>("cuda residuals float");
  gemm_checks::expect_residuals<mha::Cuda, double>("cuda residuals double");
  gemm_checks::expect_residuals<mha::Cuda, mha::bfloat16>("cuda residuals bfloat16");
}

}  // namespace
