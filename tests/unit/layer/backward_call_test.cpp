// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/backward_call.hpp>
#include <mha/mha.hpp>

namespace {

TEST(MemoryInto, IsFoundAmongACallsArguments) {
  mha::Tensor<float, 2> m(3, 4);
  mha::Workspace workspace;
  const auto to = mha::detail::find_memory_into<float>(workspace, mha::memory_into(m));
  EXPECT_EQ(to.data, m.data());
  EXPECT_EQ(to.extent[0], 1);
  EXPECT_EQ(to.extent[2], 4);
  EXPECT_EQ(mha::detail::find_memory_into<float>(workspace).data, nullptr);
}

}  // namespace
