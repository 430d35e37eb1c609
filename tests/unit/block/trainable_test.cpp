// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/block/trainable.hpp>
#include <mha/mha.hpp>

namespace {

TEST(Trainable, AreTheBackendsWithABackwardPass) {
  EXPECT_TRUE((mha::detail::check_trains<float, mha::Cpu>()));
  EXPECT_TRUE((mha::detail::check_trains<mha::bfloat16, mha::CpuWith<mha::Serial>>()));
  EXPECT_TRUE((mha::detail::check_trains<double, mha::Reference>()));
}

}  // namespace
