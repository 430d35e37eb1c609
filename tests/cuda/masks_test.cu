// SPDX-License-Identifier: Apache-2.0
// Masks against their tables, and keys shared out to any number of blocks.
#include "some_of_cuda.cuh"

namespace {

using on_gpu::Sizes;
using on_gpu::SomeOfGpu;

template <class T> void expect_masks(const char* name) {
  support::Random random(name);
  for (const mha::Index queries : {3, 200})
    device_checks::check_masks<SomeOfGpu, T>({2, queries, 300, 4, 2, 64, 64}, random);
}

TEST(CudaMasks, OfTensorCoresAreTheirTables) {
  MHA_NEEDS_GPU();
  expect_masks<mha::bfloat16>("cuda masks bfloat16");
}
TEST(CudaMasks, OfMultiplyAddsAreTheirTables) {
  MHA_NEEDS_GPU();
  expect_masks<float>("cuda masks float");
}

template <class T> void expect_splits(const char* name) {
  support::Random random(name);
  const Sizes sizes{1, 2, 9000, 4, 2, 64, 64};
  const device_checks::Masks masks(sizes, random);
  const mha::Tensor<bool, 4> unused(1, 1, 1, 1);
  constexpr int causal = 1;
  device_checks::check_splits<SomeOfGpu, T>(sizes, random,
                                            [&](const auto& keep) { return masks.at(causal, unused, keep); });
}

TEST(CudaSplits, OfSixteenBitsAgreeWithOnePiece) {
  MHA_NEEDS_GPU();
  expect_splits<mha::bfloat16>("cuda splits bfloat16");
}
TEST(CudaSplits, OfFloatAgreeWithOnePiece) {
  MHA_NEEDS_GPU();
  expect_splits<float>("cuda splits float");
}

}  // namespace
