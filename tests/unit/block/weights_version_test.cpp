// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/weights_version.hpp>

namespace {

TEST(WeightsVersion, IsNewEachTimeAndNever0) {
  const auto first = mha::detail::next_version(), second = mha::detail::next_version();
  EXPECT_GT(first, 0u);
  EXPECT_GT(second, first);
}

}  // namespace
