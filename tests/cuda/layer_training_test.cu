// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers on the GPU, beside the reference in double.
#include "layer_training_checks.hpp"
#include "on_gpu.hpp"

namespace {

TEST(CudaLayerTraining, OfFloat) {
  MHA_NEEDS_GPU();
  training_checks::expect_layers<mha::Cuda, float>("cuda layers, float");
}
TEST(CudaLayerTraining, OfBfloat16) {
  MHA_NEEDS_GPU();
  training_checks::expect_layers<mha::Cuda, mha::bfloat16>("cuda layers, bfloat16");
}

}  // namespace
