// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include <gtest/gtest.h>

#include <mha/core/copy.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>

namespace {

using mha::TensorView;
using mha::detail::copy_items;
using mha::detail::run_serially;

TEST(Copy, ReadsAndWritesAnyStrides) {
  mha::Tensor<int, 4> from(2, 3, 4, 5), to(5, 4, 3, 2);
  std::iota(from.begin(), from.end(), 1);
  const TensorView<const int, 4> source = from.view();
  const TensorView<int, 4> turned{to.data(), {2, 3, 4, 5}, {1, 2, 6, 24}};
  const auto items = copy_items(source, turned);
  EXPECT_EQ(items.rows * items.columns, 120);
  run_serially(items);
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 4; ++c)
        for (int d = 0; d < 5; ++d) EXPECT_EQ(to(d, c, b, a), from(a, b, c, d));
}

TEST(Copy, OfFewerAxesAndOfNothing) {
  int numbers[6] = {1, 2, 3, 4, 5, 6}, copy[6] = {};
  const TensorView<const int, 2> columns{numbers, {3, 2}, {1, 3}};
  run_serially(copy_items(columns, mha::view(copy, 3, 2)));
  EXPECT_EQ(copy[0], 1);
  EXPECT_EQ(copy[1], 4);
  EXPECT_EQ(copy[5], 6);
  const TensorView<const int, 3> repeated{numbers, {2, 1, 3}, {0, 0, 1}};
  run_serially(copy_items(repeated, mha::view(copy, 2, 1, 3)));
  EXPECT_EQ(copy[3], 1);
  EXPECT_EQ(copy[5], 3);
  for (const auto& none : {mha::view(copy, 0, 3), mha::view(copy, 3, 0)})
    run_serially(copy_items(TensorView<const int, 2>(none), none));
}

TEST(Copy, TakesRowMajorMemoryOfTheSameExtents) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const int numbers[6] = {1, 2, 3, 4, 5, 6};
  const TensorView<const int, 2> columns = mha::transposed(mha::view(numbers, 2, 3));
  const TensorView<double, 2> to = mha::detail::take_like<double>(frame, columns);
  EXPECT_EQ(to.extent[0], 3);
  EXPECT_EQ(to.extent[1], 2);
  EXPECT_TRUE(mha::is_contiguous(to));
  const auto owner = mha::detail::owner_like<mha::Tensor<float, 2>>(columns);
  EXPECT_EQ(owner.extent(0), 3);
}

}  // namespace
