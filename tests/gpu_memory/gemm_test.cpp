// SPDX-License-Identifier: Apache-2.0
// The products of the CUDA backend, as it lays them out for cuBLASLt, by far_cublaslt.cpp.
#include "far_cuda.hpp"
#include "gemm_checks.hpp"

TEST(FarProducts, OfFloat) { gemm_checks::expect_products<support::FarCuda, float>("far products float"); }
TEST(FarProducts, OfDouble) { gemm_checks::expect_products<support::FarCuda, double>("far products double"); }
TEST(FarProducts, OfSixteenBits) {
  gemm_checks::expect_products<support::FarCuda, mha::bfloat16>("far products bfloat16");
  gemm_checks::expect_products<support::FarCuda, mha::half>("far products half");
}
