// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers of the CUDA backend on the host, in memory that the host does not reach.
#include "far_cuda.hpp"
#include "layer_training_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarLayerTraining, OfFloat) { training_checks::expect_layers<FarCuda, float>("far layers, float"); }
TEST(FarLayerTraining, OfBfloat16) { training_checks::expect_layers<FarCuda, mha::bfloat16>("far layers, bfloat16"); }

}  // namespace
