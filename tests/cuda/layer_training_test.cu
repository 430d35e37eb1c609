// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers on the GPU, beside the reference in double.
#include "layer_training_checks.hpp"
#include "on_gpu.hpp"

namespace {

TEST(CudaLayerTraining, HaveEveryPolicy) {
  MHA_NEEDS_GPU();
  training_checks::expect_full_layers<mha::Cuda, mha::bfloat16>("cuda layers, bfloat16");
}
TEST(CudaLayerTraining, OfAMemory) {
  MHA_NEEDS_GPU();
  training_checks::expect_memories<mha::Cuda, float>("cuda layers, a memory, float");
}

}  // namespace
