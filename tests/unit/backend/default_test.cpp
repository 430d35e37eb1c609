// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/default.hpp>

namespace {

TEST(DefaultBackend, IsTheProcessorOnItsPool) {
  EXPECT_TRUE((std::is_same_v<mha::Cpu, mha::CpuWith<mha::ThreadPool>>));
  EXPECT_TRUE(mha::Backend<mha::Cpu>);
}

TEST(DefaultBackend, OthersAreNamedUntilTheirHeaderDefinesThem) {
  EXPECT_TRUE(mha::detail::is_defined<mha::Cpu>);
  EXPECT_FALSE(mha::detail::is_defined<mha::Cuda>);
}

}  // namespace
