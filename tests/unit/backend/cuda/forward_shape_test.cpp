// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/cuda/forward_shape.hpp>

namespace {

using namespace mha;
using cuda::ForwardShape;
using cuda::RowLayout;

TEST(ForwardShape, CountsItsMemory) {
  using Shape = ForwardShape<192, 128, 128, 32, 4, RowLayout::aligned>;
  EXPECT_EQ(Shape::threads, 128);
  EXPECT_EQ(Shape::strips, 2);
  EXPECT_FALSE(Shape::keeps_queries);
  EXPECT_EQ(Shape::shared_bytes, 128 * 192 * 2 + 2 * 32 * (192 + 128) * 2);
  using Wide = ForwardShape<64, 128, 64, 32, 4, RowLayout::aligned>;
  EXPECT_TRUE(Wide::keeps_queries);
  EXPECT_EQ(Wide::shared_bytes, 64 * 128 * 2 + 2 * 32 * (64 + 128) * 2);  // outputs need more room than queries
}

}  // namespace
