// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/compiled/cpu.hpp>

#include "declared.hpp"

namespace {

static_assert(MHA_KERNELS_ELSEWHERE, "the tests link mha::compiled, which says so to every unit with its flags");

TEST(CompiledCpu, IsRightInFloat) {
  declared::expect_right<float, mha::Cpu>(1e-4);
  declared::expect_right<float, mha::CpuWith<mha::Serial>>(1e-4);
}
TEST(CompiledCpu, IsRightInDouble) {
  declared::expect_right<double, mha::Cpu>(1e-12);
  declared::expect_right<double, mha::CpuWith<mha::Serial>>(1e-12);
}
TEST(CompiledCpu, IsRightInHalf) {
  declared::expect_right<mha::half, mha::Cpu>(0.02);
  declared::expect_right<mha::half, mha::CpuWith<mha::Serial>>(0.02);
}
TEST(CompiledCpu, IsRightInBfloat16) {
  declared::expect_right<mha::bfloat16, mha::Cpu>(0.15);
  declared::expect_right<mha::bfloat16, mha::CpuWith<mha::Serial>>(0.15);
}

}  // namespace
