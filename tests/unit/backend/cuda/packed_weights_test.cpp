// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/packed_weights.hpp>
#include <mha/core/tensor.hpp>

#include "gpu.hpp"
#include "random.hpp"

namespace {

using mha::DenseWeights;
using mha::Tensor;

TEST(CudaPackedWeights, MatricesOfOneDepthLieSideBySide) {
  MHA_NEEDS_GPU();
  support::Random random("cuda packed weights");
  Tensor<float, 2> a(6, 4), b(5, 3), c(6, 2);
  Tensor<float, 1> bias(2);
  random.fill(a), random.fill(b), random.fill(c), random.fill(bias);
  const DenseWeights<float> parts[] = {
      {a.view(), {}}, {mha::transposed(mha::view(b.data(), 3, 5)), {}}, {c.view(), bias.view()}};
  const mha::cuda::PackedWeights<float> packed{std::span<const DenseWeights<float>>(parts)};
  EXPECT_EQ(packed.bytes(), (6 * 6 + 5 * 3 + 6) * sizeof(float));
  EXPECT_TRUE(packed.neighbours(0, 2));
  EXPECT_FALSE(packed.neighbours(0, 1));
  EXPECT_FALSE(packed.neighbours(2, 0));

  const auto second = packed.columns(2, 3);
  EXPECT_EQ(second.matrix.data, packed.columns(0, 1).matrix.data + 4);
  EXPECT_EQ(second.matrix.stride[0], 6);
  std::vector<float> rows(36), biases(6);
  mha::cuda::check(cudaMemcpy(rows.data(), second.matrix.data - 4, 144, cudaMemcpyDeviceToHost), "cudaMemcpy");
  mha::cuda::check(cudaMemcpy(biases.data(), second.bias.data - 4, 24, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(rows[static_cast<std::size_t>(i * 6 + j)], a(i, j));
    for (int j = 0; j < 2; ++j) EXPECT_EQ(rows[static_cast<std::size_t>(i * 6 + 4 + j)], c(i, j));
  }
  EXPECT_EQ(biases, (std::vector<float>{0, 0, 0, 0, bias(0), bias(1)}));
  EXPECT_EQ(packed.columns(1, 2).bias.data, nullptr);
}

}  // namespace
