// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/backward_interface.hpp>

namespace {

TEST(RecordedTensors, AreOfNoCallAtFirst) {
  const mha::detail::RecordedTensors<float> recorded;
  EXPECT_EQ(recorded.keys, mha::detail::KeysFrom::x);
  EXPECT_TRUE(recorded.made_keys());
  EXPECT_FALSE(recorded.shared);
  EXPECT_EQ(recorded.x.data, nullptr);
  EXPECT_EQ(recorded.q_before_norm.data, nullptr);
}

}  // namespace
