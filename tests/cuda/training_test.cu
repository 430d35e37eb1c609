// SPDX-License-Identifier: Apache-2.0
// Backward passes of blocks on the GPU, beside the reference in double.
#include "on_gpu.hpp"
#include "training_checks.hpp"

namespace {

TEST(CudaTraining, LinearsOfFloat) {
  MHA_NEEDS_GPU();
  training_checks::expect_linears<mha::Cuda, float>("cuda linears, float");
}
TEST(CudaTraining, LinearsOfDouble) {
  MHA_NEEDS_GPU();
  training_checks::expect_linears<mha::Cuda, double>("cuda linears, double");
}
TEST(CudaTraining, LinearsOfBfloat16) {
  MHA_NEEDS_GPU();
  training_checks::expect_linears<mha::Cuda, mha::bfloat16>("cuda linears, bfloat16");
}
TEST(CudaTraining, LinearsOfHalf) {
  MHA_NEEDS_GPU();
  training_checks::expect_linears<mha::Cuda, mha::half>("cuda linears, half");
}
TEST(CudaTraining, FeedForwards) {
  MHA_NEEDS_GPU();
  training_checks::expect_feed_forwards<mha::Cuda, float, mha::Gelu>("cuda feed-forward, float");
  training_checks::expect_feed_forwards<mha::Cuda, mha::bfloat16, mha::SwiGlu>("cuda feed-forward, bfloat16, gated");
}
TEST(CudaTraining, NormsOfFloat) {
  MHA_NEEDS_GPU();
  training_checks::expect_norms<mha::Cuda, float>("cuda norms, float");
}
TEST(CudaTraining, NormsOfBfloat16) {
  MHA_NEEDS_GPU();
  training_checks::expect_norms<mha::Cuda, mha::bfloat16>("cuda norms, bfloat16");
}

}  // namespace
