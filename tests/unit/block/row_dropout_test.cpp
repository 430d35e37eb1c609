// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/block/row_dropout.hpp>
#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "block_backward_checks.hpp"

namespace {

using mha::Dropout;
using mha::DropoutSeed;
using mha::Index;
using support::random_rows;

constexpr Dropout drop{.p = 0.25f};
const DropoutSeed seed{11, 3};

/// What a call without dropout and a residual gives, element by element.
template <class T, class Y>
void expect_dropped(const Y& y, const Y& plain, const std::type_identity_t<Y>* residual, double bound,
                    const Dropout& by = drop) {
  std::size_t dropped = 0;
  for (Index b = 0; b < y.extent(0); ++b)
    for (Index l = 0; l < y.extent(1); ++l)
      for (Index j = 0; j < y.extent(2); ++j) {
        const bool keeps = mha::dropout_keeps(by, seed, 1, b, 0, l, j);
        dropped += keeps ? 0 : 1;
        const double r = residual == nullptr ? 0 : support::to_double((*residual)(b, l, j));
        const double expected = r + (keeps ? support::to_double(plain(b, l, j)) / 0.75 : 0);
        ASSERT_NEAR(support::to_double(y(b, l, j)), expected, bound * (1 + std::abs(expected))) << b << l << j;
      }
  const double rate = double(dropped) / double(y.size());
  EXPECT_NEAR(rate, 0.25, 5 * std::sqrt(0.25 * 0.75 / double(y.size())));
}

template <class T, class B> void expect_calls(double bound) {
  SCOPED_TRACE(B::name);
  mha::Linear<T, B, mha::Gelu> plain({.inputs = 13, .outputs = 37}), linear({.inputs = 13, .outputs = 37}, drop);
  mha::FeedForward<T, B> plain_ff({.d_model = 13, .d_hidden = 30}), ff({.d_model = 13, .d_hidden = 30}, drop);
  plain.initialize(mha::XavierUniform{.seed = 1});
  linear.borrow(plain.parameters());
  plain_ff.initialize(mha::XavierUniform{.seed = 2});
  ff.up().borrow(plain_ff.up().parameters());
  ff.down().borrow(plain_ff.down().parameters());
  const auto x = random_rows<T>("x", 3, 50, 13), r = random_rows<T>("r", 3, 50, 37);
  expect_dropped<T>(linear(x, seed), plain(x), nullptr, bound);
  expect_dropped<T>(linear(x, mha::residual(r), seed), plain(x), &r, bound);
  auto over = r;
  linear(x, mha::residual(over), mha::into(over), seed);
  expect_dropped<T>(over, plain(x), &r, bound);
  auto in_place = x;
  ff(in_place, mha::residual(in_place), mha::into(in_place), seed);
  expect_dropped<T>(in_place, plain_ff(x), &x, bound);
  // A residual that lies in the memory of other rows of the result is read before they are written.
  auto shifted = random_rows<T>("shifted", 1, 151, 37);
  const auto before = shifted;
  const auto first = mha::view(shifted.data(), 3, 50, 37), second = mha::view(shifted.data() + 37, 3, 50, 37);
  for (const bool down : {true, false}) {
    std::copy_n(before.data(), before.size(), shifted.data());
    const Index from = down ? 0 : 1;
    mha::Tensor<T, 3> given(3, 50, 37);
    std::copy_n(before.data() + 37 * from, given.size(), given.data());
    linear(x, mha::residual(down ? first : second), mha::into(down ? second : first), seed);
    mha::Tensor<T, 3> result(3, 50, 37);
    std::copy_n(shifted.data() + 37 * (1 - from), result.size(), result.data());
    expect_dropped<T>(result, plain(x), &given, bound);
  }
  // Without a seed, and with a p of 0, no bit changes.
  EXPECT_EQ(support::differing(linear(x, mha::residual(r)), plain(x, mha::residual(r))), 0u);
  EXPECT_EQ(support::differing(ff(x), plain_ff(x)), 0u);
  mha::Linear<T, B, mha::Gelu> never({.inputs = 13, .outputs = 37}, Dropout{.p = 0.f});
  never.borrow(plain.parameters());
  EXPECT_EQ(support::differing(never(x, mha::residual(r), seed), plain(x, mha::residual(r))), 0u);
}

TEST(RowDropout, DropsResultsAndNotTheResidual) {
  expect_calls<float, mha::Cpu>(1e-6);
  expect_calls<float, mha::Reference>(1e-6);
  expect_calls<float, mha::Systolic<>>(1e-6);
  expect_calls<double, mha::EigenCpu>(1e-12);
  expect_calls<mha::bfloat16, mha::Cpu>(0.02);
}

TEST(RowDropout, TapeAndThreadsChangeNoBit) {
  const auto x = random_rows<float>("x", 2, 90, 24), dy = random_rows<float>("dy", 2, 90, 24);
  mha::FeedForward<float> of({.d_model = 24, .d_hidden = 40}, drop);
  of.initialize(mha::XavierUniform{.seed = 2});
  const mha::Cpu one(mha::ThreadPool(1)), three(mha::ThreadPool(3));
  auto tape = of.tape();
  auto g = of.gradients(), h = of.gradients();
  const auto alone = of(x, tape, mha::residual(x), seed, one);
  const auto d_alone = of.backward(dy, tape, g, one);
  const auto shared = of(x, tape, mha::residual(x), seed, three);
  const auto d_shared = of.backward(dy, tape, h, three);
  EXPECT_EQ(support::differing(alone, shared), 0u);
  EXPECT_EQ(support::differing(alone, of(x, mha::residual(x), seed)), 0u);
  EXPECT_EQ(support::differing(d_alone, d_shared), 0u);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_EQ(g.flat()[i], h.flat()[i]);
  EXPECT_GT(support::differing(alone, of(x, mha::residual(x), DropoutSeed{11, 4})), 0u);
}

template <class B> void expect_gradients() {
  mha::Linear<double, B, mha::SwiGlu> linear({.inputs = 5, .outputs = 6}, drop);
  support::draw(linear, "weights", 0.6);
  auto x = random_rows("x", 2, 4, 5);
  const auto dy = random_rows("dy", 2, 4, 6), r = random_rows("r", 2, 4, 6);
  auto tape = linear.tape();
  auto g = linear.gradients();
  static_cast<void>(linear(x, tape, seed, mha::residual(r)));
  const auto dx = linear.backward(dy, tape, g);
  const auto loss = [&] { return support::inner(dy, linear(x, seed, mha::residual(r))); };
  support::expect_row_gradients("rows", x, dx, loss);
  support::expect_parameter_gradients("weights", linear, g, loss);
  // A call without a seed leaves nothing of it on the tape.
  static_cast<void>(linear(x, tape));
  const auto whole = linear.backward(dy, tape, g);
  const auto whole_loss = [&] { return support::inner(dy, linear(x)); };
  support::expect_row_gradients("rows without a seed", x, whole, whole_loss);
}

TEST(RowDropout, GradientsEqualDifferenceQuotients) {
  expect_gradients<mha::Reference>();
  expect_gradients<mha::Cpu>();
}

TEST(RowDropout, ARefusedCallLeavesTheTapeAsItWas) {
  mha::Linear<float, mha::Cpu, mha::SwiGlu> linear({.inputs = 3, .outputs = 4});
  linear.initialize(mha::XavierUniform{.seed = 1});
  const auto x = random_rows<float>("x", 1, 4, 3), dy = random_rows<float>("dy", 1, 4, 4);
  const auto longer = random_rows<float>("longer", 1, 4000, 3);
  auto tape = linear.tape();
  auto g = linear.gradients(), again = linear.gradients();
  static_cast<void>(linear(x, tape));
  const auto before = linear.backward(dy, tape, g);
  EXPECT_THROW(static_cast<void>(linear(longer, tape, seed)), mha::ShapeError);
  EXPECT_EQ(support::differing(linear.backward(dy, tape, again), before), 0u);
}

TEST(RowDropout, CostsAPassOfItsOwn) {
  const mha::LinearConfig c{.inputs = 3, .outputs = 4};
  const mha::Linear<float> with(c, Dropout{.p = 0.25f}), without(c);
  EXPECT_EQ(with.backward_cost(10).scratch_bytes - without.backward_cost(10).scratch_bytes, 10 * 4 * sizeof(float));
  EXPECT_NE(with.explain(10).find("dropout:     0.25 in calls with a DropoutSeed"), std::string::npos);
  EXPECT_EQ(without.explain(10).find("dropout"), std::string::npos);
}

TEST(RowDropout, IsRefusedWithoutAProbability) {
  mha::Linear<float> linear({.inputs = 3, .outputs = 4});
  linear.initialize(mha::XavierUniform{.seed = 1});
  const mha::Tensor<float, 2> x(2, 3);
  EXPECT_EQ(support::message_of([&] { static_cast<void>(linear(x, seed)); }),
            "linear: a DropoutSeed is given, expected a Dropout{.p} in the constructor too");
  EXPECT_THROW((mha::Linear<float>({.inputs = 3, .outputs = 4}, Dropout{.p = 1.f})), mha::ShapeError);
}

}  // namespace
