// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/layer/sequence.hpp>

namespace {

TEST(Sequence, MeanOverHeads) {
  mha::Tensor<float, 4> each(2, 3, 2, 4);
  std::iota(each.begin(), each.end(), 0.f);
  mha::Tensor<float, 3> mean(2, 2, 4);
  mha::detail::run_serially(mha::detail::mean_over_heads<float>(each.view(), mean.view()));
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 4; ++k) EXPECT_EQ(mean(b, i, k), float(24 * b + 8 + 4 * i + k));
}

TEST(Sequence, ResultsOfAProjectionAreRowsOfTheSameMemory) {
  mha::Tensor<float, 1> memory(2 * 3 * 4 * 5);
  const auto rows = mha::detail::rows_of(mha::view_blhd(memory.data(), 2, 3, 4, 5));
  EXPECT_EQ(rows.extent[0], 6);
  EXPECT_EQ(rows.extent[1], 20);
  EXPECT_EQ(&rows(4, 7), memory.data() + 4 * 20 + 7);
}

}  // namespace
