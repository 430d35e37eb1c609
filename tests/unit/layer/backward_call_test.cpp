// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

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

TEST(Meet, TellsColumnsOfOneMatrixApart) {
  mha::Tensor<float, 3> x(1, 4, 8), apart(1, 4, 4);
  const auto columns = [&](int first) { return mha::TensorView<float, 3>{&x(0, 0, first), {1, 4, 4}, {32, 8, 1}}; };
  EXPECT_FALSE(mha::detail::meet(columns(0), columns(4)));
  EXPECT_TRUE(mha::detail::meet(columns(0), columns(3)));
  EXPECT_TRUE(mha::detail::meet(columns(0), x.view()));
  EXPECT_FALSE(mha::detail::meet(columns(0), apart.view()));
}

TEST(GivenTape, IsFoundWhereverItStands) {
  mha::LayerTape<float, mha::Cpu> tape;
  mha::Workspace workspace;
  const mha::Causal causal;
  EXPECT_EQ((&mha::detail::given_tape<decltype(tape)>(causal, tape, workspace)), &tape);
}

}  // namespace
