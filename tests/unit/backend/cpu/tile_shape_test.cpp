// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/cpu/tile_shape.hpp>

namespace {

namespace cpu = mha::detail::cpu;

TEST(KeyChunk, EndsWithABlock) { EXPECT_EQ(cpu::key_chunk % cpu::key_block, 0); }

}  // namespace
