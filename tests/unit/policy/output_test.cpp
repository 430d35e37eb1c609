// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/policy/output.hpp>

namespace {

TEST(LinearOutput, ReturnsToTheModelsWidth) {
  static_assert(mha::role_of<mha::LinearOutput>() == mha::Role::output && mha::LinearOutput::has_weights);
  EXPECT_EQ(mha::LinearOutput::width(96, 64), 64);
}

TEST(NoOutput, LeavesTheHeadsAsTheyAre) {
  static_assert(mha::role_of<mha::NoOutput>() == mha::Role::output && !mha::NoOutput::has_weights);
  EXPECT_EQ(mha::NoOutput::width(96, 64), 96);
}

}  // namespace
