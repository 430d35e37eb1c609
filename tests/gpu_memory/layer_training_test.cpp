// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers of the CUDA backend on the host, in memory that the host does not reach.
#include "far_cuda.hpp"
#include "layer_training_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarLayerTraining, HaveEveryPolicy) {
  training_checks::expect_full_layers<FarCuda, float>("far layers, HaveEveryPolicy, float");
  training_checks::expect_full_layers<FarCuda, double>("far layers, HaveEveryPolicy, double");
  training_checks::expect_full_layers<FarCuda, mha::bfloat16>("far layers, HaveEveryPolicy, bfloat16");
  training_checks::expect_full_layers<FarCuda, mha::half>("far layers, HaveEveryPolicy, half");
}
TEST(FarLayerTraining, OfAMemory) {
  training_checks::expect_memories<FarCuda, float>("far layers, OfAMemory, float");
  training_checks::expect_memories<FarCuda, mha::bfloat16>("far layers, OfAMemory, bfloat16");
}
TEST(FarLayerTraining, WithWhatACallIsGiven) {
  training_checks::expect_calls<FarCuda, float>("far layers, WithWhatACallIsGiven, float");
  training_checks::expect_calls<FarCuda, mha::bfloat16>("far layers, WithWhatACallIsGiven, bfloat16");
}
TEST(FarLayerTraining, WithHeadsOfTheirOwn) {
  training_checks::expect_bare_layers<FarCuda, float>("far layers, WithHeadsOfTheirOwn, float");
  training_checks::expect_bare_layers<FarCuda, mha::bfloat16>("far layers, WithHeadsOfTheirOwn, bfloat16");
}

}  // namespace
