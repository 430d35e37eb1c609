// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <gtest/gtest.h>

#include <mha/core/items.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/mean_over_heads.hpp>

namespace {

TEST(MeanOverHeads, IsOfTheRowsOfEachQuery) {
  mha::Tensor<float, 4> each(2, 3, 2, 4);
  std::iota(each.begin(), each.end(), 0.f);
  mha::Tensor<float, 3> mean(2, 2, 4);
  mha::detail::run_serially(mha::detail::mean_over_heads<float>(each.view(), mean.view()));
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 4; ++k) EXPECT_EQ(mean(b, i, k), float(24 * b + 8 + 4 * i + k));
}

}  // namespace
