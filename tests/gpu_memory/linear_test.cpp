// SPDX-License-Identifier: Apache-2.0
// Linears of the CUDA backend on the host: what they pack, multiply and finish, and in which memory.
#include "far_cuda.hpp"
#include "linear_checks.hpp"

namespace {

using support::FarCuda;

TEST(FarLinear, OfBfloat16) { linear_checks::expect_blocks<FarCuda, mha::bfloat16>("far linear bfloat16"); }
TEST(FarLinear, OfFloat) { linear_checks::expect_blocks<FarCuda, float>("far linear float"); }
TEST(FarLinear, OfDouble) { linear_checks::expect_blocks<FarCuda, double>("far linear double"); }

}  // namespace
