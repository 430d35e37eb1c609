// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "random.hpp"

namespace {

TEST(MemoryTape, HasNothingBeforeACallAndMovesWhatItHas) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu>;
  Layer layer({.d_model = 8, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 2> memory(3, 8);
  support::Random("memory tape").fill(memory);
  auto tape = layer.memory_tape();
  static_assert(std::is_same_v<decltype(tape), mha::MemoryTape<float, mha::Cpu>>);
  EXPECT_FALSE(tape.recorded());
  static_cast<void>(layer.project_memory(memory, tape));
  EXPECT_TRUE(tape.recorded());
  auto moved = std::move(tape);
  EXPECT_TRUE(moved.recorded());
  EXPECT_FALSE(tape.recorded());  // NOLINT: what it had is gone
  tape = std::move(moved);
  EXPECT_FALSE(moved.recorded());  // NOLINT
  moved = std::move(tape);
  auto d = layer.key_value_gradients(1, 3);
  const auto d_memory = layer.backward(d, moved);
  EXPECT_EQ(d_memory.extent(0), 1);
  EXPECT_EQ(d_memory.extent(1), 3);
  EXPECT_EQ(d_memory.extent(2), 8);
  for (const float x : d_memory) EXPECT_EQ(x, 0);
}

}  // namespace
