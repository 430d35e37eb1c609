// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/backward_call.hpp>
#include <mha/mha.hpp>

namespace {

TEST(MemoryInto, IsFoundAmongACallsArguments) {
  mha::Tensor<float, 2> m(3, 4);
  mha::Workspace workspace;
  const auto to = mha::detail::find_memory_into<float>(workspace, mha::memory_into(m));
  EXPECT_TRUE(to.wanted);
  EXPECT_EQ(to.to.data, m.data());
  EXPECT_EQ(to.to.extent[0], 1);
  EXPECT_EQ(to.to.extent[2], 4);
  EXPECT_FALSE(mha::detail::find_memory_into<float>(workspace).wanted);
  mha::Tensor<float, 2> empty;
  EXPECT_TRUE(mha::detail::find_memory_into<float>(mha::memory_into(empty)).wanted);
}

TEST(BiasTo, IsWhatIsGivenWithOrWithoutElements) {
  using mha::detail::find_bias_gradient;
  mha::Tensor<float, 4> wide;
  mha::Tensor<mha::bfloat16, 4> own;
  const auto to_wide = find_bias_gradient<mha::bfloat16>(mha::BiasGradient(wide));
  const auto to_own = find_bias_gradient<mha::bfloat16>(mha::BiasGradient(own));
  EXPECT_TRUE(to_wide.wanted() && to_wide.to_wide && !to_wide.to_own);
  EXPECT_TRUE(to_own.wanted() && to_own.to_own && !to_own.to_wide);
  EXPECT_TRUE(find_bias_gradient<float>(mha::BiasGradient(wide)).to_wide);
  EXPECT_FALSE(find_bias_gradient<float>().wanted());
  EXPECT_FALSE(to_wide.adds);
  const auto sum = find_bias_gradient<mha::bfloat16>(mha::BiasGradient(mha::add_to(own)));
  EXPECT_TRUE(sum.to_own && sum.adds);
}

}  // namespace
