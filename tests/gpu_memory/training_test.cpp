// SPDX-License-Identifier: Apache-2.0
// Backward passes of blocks of the CUDA backend on the host: what they multiply, add up and keep, and in which memory.
#include "far_cuda.hpp"
#include "training_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarTraining, LinearsOfFloat) { training_checks::expect_linears<FarCuda, float>("far linears, float"); }
TEST(FarTraining, LinearsOfDouble) { training_checks::expect_linears<FarCuda, double>("far linears, double"); }
TEST(FarTraining, LinearsOfBfloat16) {
  training_checks::expect_linears<FarCuda, mha::bfloat16>("far linears, bfloat16");
}
TEST(FarTraining, LinearsOfHalf) { training_checks::expect_linears<FarCuda, mha::half>("far linears, half"); }

TEST(FarTraining, FeedForwards) {
  training_checks::expect_feed_forwards<FarCuda, float, mha::Gelu>("far feed-forward, float");
  training_checks::expect_feed_forwards<FarCuda, double, mha::SwiGlu>("far feed-forward, double, gated");
  training_checks::expect_feed_forwards<FarCuda, mha::bfloat16, mha::SwiGlu>("far feed-forward, bfloat16, gated");
}

TEST(FarTraining, NormsOfFloat) { training_checks::expect_norms<FarCuda, float>("far norms, float"); }
TEST(FarTraining, NormsOfDouble) { training_checks::expect_norms<FarCuda, double>("far norms, double"); }
TEST(FarTraining, NormsOfBfloat16) { training_checks::expect_norms<FarCuda, mha::bfloat16>("far norms, bfloat16"); }

}  // namespace
