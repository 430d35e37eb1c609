// SPDX-License-Identifier: Apache-2.0
// Steps of a cache in the memory of a GPU.
#include "layer_checks.hpp"
#include "replay_checks.hpp"
#include "some_of_cuda.cuh"

namespace {

using on_gpu::SomeOfCuda;

TEST(CudaCache, StepsOverPages) {
  MHA_NEEDS_GPU();
  layer_checks::expect_steps<SomeOfCuda, mha::bfloat16>("cuda steps, paged",
                                                        mha::Paged{.pages = 12, .length = 64, .page = 16});
}
TEST(CudaCache, StepsOverARing) {
  MHA_NEEDS_GPU();
  layer_checks::expect_steps<SomeOfCuda, mha::bfloat16>("cuda steps, ring", mha::Ring{.left = 10, .rows = 20},
                                                        mha::SlidingWindow{.left = 10});
}

TEST(CudaCache, HasValuesInItsKeys) {
  MHA_NEEDS_GPU();
  layer_checks::expect_values_in_keys<SomeOfCuda, mha::bfloat16>("cuda values in keys");
}

TEST(CudaCache, AGraphReplaysAStepWhileTheCacheGrows) {
  MHA_NEEDS_GPU();
  const auto nothing = [] {};
  replay_checks::expect_replays<SomeOfCuda, mha::bfloat16>("cuda replay, paged",
                                                           mha::Paged{.pages = 12, .length = 512, .page = 16}, nothing);
  replay_checks::expect_replays<SomeOfCuda, mha::bfloat16>("cuda replay, contiguous", mha::Contiguous{.length = 300},
                                                           nothing);
}

}  // namespace
