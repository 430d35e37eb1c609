// SPDX-License-Identifier: Apache-2.0
// Products as they are laid out for cuBLASLt, by the imitation of tests/gpu_memory; tests/cuda has those of cuBLASLt
// itself.
#include <gtest/gtest.h>

#include <mha/backend/cuda/gemm.hpp>

#include "../../../gpu_memory/far_cuda.hpp"
#include "gemm_checks.hpp"

namespace {

using support::FarCuda;

TEST(FarProducts, OfFloat) { gemm_checks::expect_products<FarCuda, float>("far products float"); }
TEST(FarProducts, OfDouble) { gemm_checks::expect_products<FarCuda, double>("far products double"); }
TEST(FarProducts, OfSixteenBits) {
  gemm_checks::expect_products<FarCuda, mha::bfloat16>("far products bfloat16");
  gemm_checks::expect_products<FarCuda, mha::half>("far products half");
}

}  // namespace
