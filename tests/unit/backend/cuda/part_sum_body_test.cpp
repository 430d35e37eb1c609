// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/part_sum_body.hpp>

#include "gpu_model/launch.hpp"

namespace {

using mha::Index;

TEST(PartSum, AddsPartsInOrderAndWritesWhereItIsTold) {
  const std::vector<double> parts{1, 2, 3, 4, 5, 6, 0x1p60, 0x1p60, 10, 20, 30, 40};  // 2 of 6: the first two are large
  std::vector<double> sums(6, -1);
  std::vector<float> elements(13, -1);
  const auto run = [](const mha::cuda::PartSumParams<float>& p) {
    support::gpu::launch({1, 1, 1}, mha::cuda::PartSumShape::threads, 0,
                         [&](support::gpu::HostMachine& m) { mha::cuda::part_sum_body(m, p); });
  };
  run({parts.data(), 2, 6, sums.data()});
  EXPECT_EQ(sums, (std::vector<double>{1 + 0x1p60, 2 + 0x1p60, 13, 24, 35, 46}));
  std::vector<double> apart(9, -1);
  mha::cuda::PartSumParams<float> rows{parts.data(), 2, 6, apart.data()};
  rows.columns = 2, rows.pitch = 3;
  run(rows);
  EXPECT_EQ(apart, (std::vector<double>{1 + 0x1p60, 2 + 0x1p60, -1, 13, 24, -1, 35, 46, -1}));
  mha::cuda::PartSumParams<float> p{parts.data(), 2, 6, nullptr, elements.data() + 12};  // (1, 2, 1, 3), transposed
  const std::ptrdiff_t stride[4] = {0, -2, 0, -4};
  const Index extent[4] = {1, 2, 1, 3};
  std::copy_n(stride, 4, p.stride);
  std::copy_n(extent, 4, p.extent);
  run(p);
  EXPECT_EQ(elements, (std::vector<float>{-1, -1, 46, -1, 13, -1, 35, -1, 0x1p60f, -1, 24, -1, 0x1p60f}));
}

}  // namespace
