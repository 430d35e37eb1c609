// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/block/parts.hpp>

#include "block_backward_checks.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::message_of;
using support::random_rows;
using Rows = mha::Tensor<double, 3>;

/// One step of an optimiser that does not know what it steps.
template <class Part, class Gradients> void descend(Part& part, const Gradients& gradients, float rate) {
  part.update([&](auto& p) {
    p.for_each(gradients, [&](auto numbers, auto of_numbers) {
      ASSERT_EQ(numbers.size(), of_numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<std::remove_cvref_t<decltype(numbers[i])>>(static_cast<float>(numbers[i]) -
                                                                            rate * static_cast<float>(of_numbers[i]));
    });
  });
}

/// That each parameter is what it was less its gradient.
template <class Views, class Before, class G> void expect_stepped(const Views& now, const Before& before, const G& g) {
  ASSERT_EQ(now.flat().size(), before.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(now.flat()[i], before[i] - 0.5f * g.flat()[i]) << i;
}
template <class Views> std::vector<float> numbers_of(const Views& p) { return {p.flat().begin(), p.flat().end()}; }

template <class G> void count_up(G& gradients) {
  float next = 0;
  for (auto& d : gradients.flat()) d = next++;
}

TEST(Parts, OverlapWhereOneOfThemDoes) {
  float numbers[40] = {};
  const auto matrix = [&](int at) { return mha::view(std::as_const(numbers) + at, 2, 3); };
  const auto vector = [&](int at) { return mha::view(std::as_const(numbers) + at, 3); };
  // Each part of one is where the last part of the other begins, or behind it.
  const mha::LinearViews<const float> at_once{matrix(0), vector(6), matrix(9), vector(15), {}};
  for (const int part : {0, 6, 9, 15}) EXPECT_TRUE(mha::detail::parts_overlap(at_once, vector(part))) << part;
  EXPECT_FALSE(mha::detail::parts_overlap(at_once, vector(18)));
  EXPECT_FALSE(mha::detail::parts_overlap(mha::LinearViews<const float>{}, vector(0)));

  mha::LinearViews<const float> other{matrix(18), vector(24), matrix(27), vector(17), {}};
  EXPECT_TRUE(mha::detail::parts_overlap(at_once, other));
  other.gate_bias = vector(33);
  EXPECT_FALSE(mha::detail::parts_overlap(at_once, other));
}

TEST(ForEach, OneOptimiserServesLayersAndBlocks) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2, .bias = true});
  mha::Linear<float, mha::Cpu, mha::SwiGlu> linear({.inputs = 4, .outputs = 3});
  layer.initialize(mha::XavierUniform{.seed = 1});
  linear.initialize(mha::XavierUniform{.seed = 1});
  mha::LayerNorm<float> norm({.width = 4});
  mha::RmsNorm<float> rms({.width = 4});
  const auto expect = [](auto& part) {
    auto g = part.gradients();
    count_up(g);
    const auto before = numbers_of(part.parameters());
    descend(part, g, 0.5f);
    expect_stepped(part.parameters(), before, g);
  };
  expect(layer);
  expect(linear);
  expect(norm);
  expect(rms);

  mha::FeedForward<float> ff({.d_model = 4, .d_hidden = 5});
  ff.initialize(mha::XavierUniform{.seed = 1});
  auto g = ff.gradients();
  count_up(g);
  const auto up = numbers_of(ff.parameters().up), down = numbers_of(ff.parameters().down);
  descend(ff, g, 0.5f);
  expect_stepped(ff.parameters().up, up, g.up);
  expect_stepped(ff.parameters().down, down, g.down);

  // Weights in 16 bits have gradients in float.
  mha::Linear<mha::bfloat16> narrow({.inputs = 2, .outputs = 1, .bias = false});
  narrow.update([](auto& p) { p.weight(1, 0) = mha::bfloat16(2.f); });
  auto of_narrow = narrow.gradients();
  of_narrow.weight(1, 0) = 1;
  descend(narrow, of_narrow, 0.5f);
  EXPECT_EQ(float(narrow.parameters().weight(1, 0)), 1.5f);
}

/// What for_each says of other gradients, before any step.
template <class Part, class Gradients> std::string refusal(Part& part, const Gradients& gradients) {
  return message_of(
      [&] { part.update([&](auto& p) { p.for_each(gradients, [](auto, auto) { ADD_FAILURE() << "a step"; }); }); });
}

TEST(ForEach, GradientsOfOtherSizesAreRefusedByName) {
  const std::string sizes = ": the gradients are of other sizes: on axis ";
  using Linear = mha::Linear<mha::bfloat16>;
  Linear linear({.inputs = 6, .outputs = 5});
  EXPECT_EQ(refusal(linear, Linear({.inputs = 6, .outputs = 4}).gradients()),
            "for_each" + sizes + "1 their weight has extent 4, expected 5");
  EXPECT_EQ(refusal(linear, Linear({.inputs = 6, .outputs = 5, .bias = false}).gradients()),
            "for_each" + sizes + "0 their bias has extent 0, expected 5");
  EXPECT_EQ(refusal(linear, Linear({.inputs = 5, .outputs = 5}).gradients()),
            "for_each" + sizes + "0 their weight has extent 5, expected 6");
  // As many numbers, but in another shape.
  EXPECT_EQ(refusal(linear, Linear({.inputs = 4, .outputs = 7}).gradients()),
            "for_each" + sizes + "0 their weight has extent 4, expected 6");
  mha::LayerNorm<float> norm({.width = 4});
  EXPECT_EQ(refusal(norm, mha::RmsNorm<float>({.width = 4}).gradients()),
            "for_each" + sizes + "0 their bias has extent 0, expected 4");
  mha::MultiHeadAttention<float> layer({.d_model = 6, .num_heads = 2});
  EXPECT_EQ(refusal(layer, mha::MultiHeadAttention<float>({.d_model = 6, .num_heads = 3}).gradients()),
            "for_each" + sizes + "0 their query has extent 3, expected 2");

  // Of the second Linear too before the first is stepped.
  using FeedForward = mha::FeedForward<float>;
  FeedForward ff({.d_model = 4, .d_hidden = 5});
  struct Of {
    mha::LinearGradients<float> up, down;
  };
  const auto wider = FeedForward({.d_model = 4, .d_hidden = 6}).gradients();
  EXPECT_EQ(refusal(ff, wider), "for_each: up" + sizes + "1 their weight has extent 6, expected 5");
  const Of both{ff.up().gradients(), mha::Linear<float>({.inputs = 6, .outputs = 4}).gradients()};
  EXPECT_EQ(refusal(ff, both), "for_each: down" + sizes + "0 their weight has extent 6, expected 5");
}

TEST(ForEach, GradientsWithoutNamesAreCounted) {
  struct Flat {
    std::vector<float> numbers;
    std::span<const float> flat() const { return numbers; }
  };
  mha::Linear<float> linear({.inputs = 2, .outputs = 1});
  EXPECT_EQ(refusal(linear, Flat{{1, 2}}), "for_each: the gradients are 2 numbers, expected 3");
  linear.update([](auto& p) { p.for_each(Flat{{1, 2, 4}}, [](auto numbers, auto d) { numbers[2] -= d[2]; }); });
  EXPECT_EQ(linear.parameters().bias(0), -4);
}

// One gradient for weights that are used twice: both backward passes add to it.
TEST(ForEach, WeightsThatAreUsedTwiceHaveOneGradient) {
  mha::Linear<double, mha::Reference> first({.inputs = 4, .outputs = 4}), second({.inputs = 4, .outputs = 4});
  mha::RmsNorm<double, mha::Reference> norm({.width = 4});
  support::draw(first, "tied", 0.5);
  second.borrow(first.parameters());
  Rows x = random_rows("tied x", 2, 3, 4);
  const Rows dy = random_rows("tied dy", 2, 3, 4);
  auto tape1 = first.tape(), tape2 = second.tape();
  auto of_norm1 = norm.tape(), of_norm2 = norm.tape();
  auto g = first.gradients();
  auto of_norm = norm.gradients();
  const Rows h1 = norm(x, of_norm1), h2 = first(h1, tape1), h3 = norm(h2, of_norm2), y = second(h3, tape2);
  const auto d3 = second.backward(dy, tape2, g), d2 = norm.backward(d3, of_norm2, of_norm),
             d1 = first.backward(d2, tape1, g), dx = norm.backward(d1, of_norm1, of_norm);
  const auto loss = [&] {
    second.borrow(first.parameters());
    return support::inner(dy, second(norm(first(norm(x)))));
  };
  support::expect_row_gradients("tied", x, dx, loss);
  support::expect_parameter_gradients("tied", first, g, loss);
  support::expect_parameter_gradients("a norm twice", norm, of_norm, loss);

  const double before = loss();
  first.update([&](auto& p) {
    p.for_each(g, [](auto numbers, auto d) {
      for (std::size_t i = 0; i < d.size(); ++i) numbers[i] -= 1e-3 * d[i];
    });
  });
  EXPECT_LT(loss(), before);
}

}  // namespace
