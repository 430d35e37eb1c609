// SPDX-License-Identifier: Apache-2.0
// Norms of the CUDA backend on the host: what they upload and in which memory they read and write.
#include "far_cuda.hpp"
#include "norm_checks.hpp"

namespace {

TEST(FarNorm, OfFloat) { norm_checks::expect_norms<support::FarCuda, float>(); }
TEST(FarNorm, OfBfloat16) { norm_checks::expect_norms<support::FarCuda, mha::bfloat16>(); }

}  // namespace
