// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"

namespace {

using Linear = mha::Linear<mha::bfloat16, mha::Cpu, mha::SwiGlu>;

TEST(BlockGradients, HaveTheNamesShapesAndOrderOfTheParameters) {
  Linear own({.inputs = 6, .outputs = 5});
  own.initialize(mha::XavierUniform{.seed = 1});
  const auto g = own.gradients();
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(g)>, mha::LinearGradients<float>>);
  ASSERT_EQ(static_cast<std::int64_t>(g.flat().size()), own.parameter_count());
  for (const float x : g.flat()) EXPECT_EQ(x, 0);
  const auto w = own.parameters();
  const auto* const first = w.flat().data();
  EXPECT_EQ(&g.weight(3, 2) - g.flat().data(), &w.weight(3, 2) - first);
  EXPECT_EQ(&g.bias(4) - g.flat().data(), &w.bias(4) - first);
  EXPECT_EQ(&g.gate(1, 2) - g.flat().data(), &w.gate(1, 2) - first);
  EXPECT_EQ(&g.gate_bias(2) - g.flat().data(), &w.gate_bias(2) - first);
  const auto plain = mha::Linear<float>({.inputs = 2, .outputs = 3, .bias = false}).gradients();
  EXPECT_EQ(plain.bias.data, nullptr);
  EXPECT_EQ(plain.gate.data, nullptr);
  EXPECT_EQ(plain.flat().size(), 6u);
}

TEST(BlockGradients, CopiesHaveMemoryOfTheirOwn) {
  auto g = Linear({.inputs = 6, .outputs = 5}).gradients();
  g.gate(1, 2) = 3;
  g.bias(1) = 4;
  auto copy = g;
  EXPECT_EQ(copy.gate(1, 2), 3);
  EXPECT_EQ(copy.flat().size(), g.flat().size());
  EXPECT_EQ(copy.memory().data, copy.flat().data());
  copy.clear();
  EXPECT_EQ(copy.gate(1, 2), 0);
  EXPECT_EQ(g.bias(1), 4);
  const auto* const data = g.flat().data();
  auto moved = std::move(g);
  EXPECT_EQ(moved.flat().data(), data);
  EXPECT_EQ(g.weight.data, nullptr);  // NOLINT(bugprone-use-after-move)
  copy = moved;
  EXPECT_EQ(copy.gate(1, 2), 3);
  EXPECT_NE(copy.flat().data(), data);
  copy = std::move(moved);
  EXPECT_EQ(copy.flat().data(), data);
}

TEST(BlockGradients, AreRefusedByALinearOfOtherSizes) {
  const auto g = Linear({.inputs = 6, .outputs = 5}).gradients();
  using Views = mha::LinearViews<float>;
  mha::detail::require_gradients<Views, Views>("backward", g, Linear({.inputs = 6, .outputs = 5}).gradients());
  const auto refusal = [&](const auto& other) {
    return support::message_of([&] { mha::detail::require_gradients<Views, Views>("backward", g, other.gradients()); });
  };
  const std::string sizes = "backward: the gradients are of other sizes: on axis ";
  EXPECT_EQ(refusal(Linear({.inputs = 6, .outputs = 4})), sizes + "1 their weight has extent 5, expected 4");
  EXPECT_EQ(refusal(Linear({.inputs = 6, .outputs = 5, .bias = false})),
            sizes + "0 their bias has extent 5, expected 0");
  EXPECT_EQ(refusal(mha::Linear<float>({.inputs = 6, .outputs = 5})), sizes + "0 their gate has extent 6, expected 0");
}

}  // namespace
