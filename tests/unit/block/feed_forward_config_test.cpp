// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/feed_forward_config.hpp>

namespace {

TEST(FeedForwardConfig, HasBiasesUnlessToldOtherwise) {
  EXPECT_TRUE((mha::FeedForwardConfig{.d_model = 3, .d_hidden = 4}.bias));
  EXPECT_EQ(mha::FeedForwardConfig{}.d_model, 0);
}

}  // namespace
