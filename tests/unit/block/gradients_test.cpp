// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
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

TEST(BlockGradients, FlatHasTheOrderOfTheDocumentation) {
  const mha::FeedForward<float, mha::Cpu, mha::SwiGlu> block({.d_model = 3, .d_hidden = 4, .bias = true});
  const mha::LayerNorm<float> norm({.width = 5});
  const auto g = block.gradients();
  const auto of_norm = norm.gradients();
  const float* next = g.flat().data();
  const auto row = [&](const auto& v) {
    for (mha::Index i = 0; i < v.extent[0]; ++i) EXPECT_EQ(&v(i), next++);
  };
  const auto matrix = [&](const auto& m) {
    for (mha::Index i = 0; i < m.extent[0]; ++i)
      for (mha::Index j = 0; j < m.extent[1]; ++j) EXPECT_EQ(&m(i, j), next++);
  };
  matrix(g.up.weight), row(g.up.bias), matrix(g.up.gate), row(g.up.gate_bias);
  matrix(g.down.weight), row(g.down.bias);
  EXPECT_EQ(next, g.flat().data() + g.flat().size());
  next = of_norm.flat().data();
  row(of_norm.weight), row(of_norm.bias);
  EXPECT_EQ(next, of_norm.flat().data() + of_norm.flat().size());
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
  auto& same = copy;
  copy = std::move(same);
  EXPECT_EQ(copy.flat().data(), data);
  copy = same;
  EXPECT_EQ(copy.gate(1, 2), 3);
}

// Else memory that gives out would end the program.
TEST(BlockGradients, CopyAssignmentMayThrowAlsoOfWhatHasThem) {
  struct Part {
    mha::LinearGradients<float> gradients;
  };
  static_assert(std::is_copy_assignable_v<Part> && !std::is_nothrow_copy_assignable_v<Part>);
  static_assert(std::is_nothrow_move_assignable_v<Part>);
}

TEST(BlockGradients, ForEachPassesAllNumbers) {
  const auto expect = [](auto g) {
    std::size_t count = 0;
    g.for_each([&](const auto& numbers) {
      for (auto& number : numbers) number = static_cast<float>(++count);
    });
    EXPECT_EQ(count, g.memory().extent[0]);
    float sum = 0;
    std::as_const(g).for_each([&](const std::span<const float>& numbers) {
      for (const float number : numbers) sum += number;
    });
    EXPECT_EQ(sum, float(count * (count + 1) / 2));
    auto twice = g;
    twice.for_each(g, [](const auto& to, const auto& from) {
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    });
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(twice.flat()[i], 2 * g.flat()[i]);
  };
  expect(Linear({.inputs = 6, .outputs = 5}).gradients());
  expect(mha::FeedForward<float>({.d_model = 3, .d_hidden = 4}).gradients());
  expect(mha::LayerNorm<float>({.width = 7}).gradients());
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
