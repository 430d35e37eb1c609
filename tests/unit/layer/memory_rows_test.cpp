// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/core/view.hpp>
#include <mha/layer/memory_rows.hpp>

namespace {

TEST(MemoryRows, AreTheSameWhereTheyShowTheSameElements) {
  const float numbers[24] = {};
  using Rows = mha::detail::MemoryRows<float>;
  const auto all = mha::view(numbers, 1, 6, 4), fewer = mha::view(numbers, 1, 5, 4),
             behind = mha::view(numbers + 4, 1, 5, 4);
  EXPECT_TRUE((Rows{all, all}.same()));
  EXPECT_FALSE((Rows{all, fewer}.same()));
  EXPECT_FALSE((Rows{fewer, behind}.same()));
  EXPECT_TRUE(Rows{}.same());
}

}  // namespace
