// SPDX-License-Identifier: Apache-2.0
// Backward passes on the GPU over keys and values that a call did not make, beside the reference in double.
#include "cached_training_checks.hpp"
#include "on_gpu.hpp"

namespace {

TEST(CudaCachedTraining, OfPages) {
  MHA_NEEDS_GPU();
  cached_training_checks::expect_text<mha::Cuda, mha::bfloat16>("cuda cached, pages",
                                                                mha::Paged{.pages = 12, .length = 64, .page = 16},
                                                                {{{20, 1, 0}, {1, 10, 33}, {15, 7, 1}}}, mha::Causal{});
}
TEST(CudaCachedTraining, OfAProjectedMemory) {
  MHA_NEEDS_GPU();
  cached_training_checks::expect_ragged_memory<mha::Cuda, float>("cuda cached, memory, float");
}
TEST(CudaCachedTraining, OfSources) {
  MHA_NEEDS_GPU();
  cached_training_checks::expect_sources<mha::Cuda, float>("cuda sources, float");
}

}  // namespace
