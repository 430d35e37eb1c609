// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/feed_forward.hpp>
#include <mha/systolic.hpp>

#include "far_backend.hpp"
#include "linear_oracle.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TensorView;
using support::message_of;

template <class FF> void draw_weights(FF& ff, support::Random& random) {
  using T = typename FF::Scalar;
  const auto draw = [&](auto& p) {
    for (T& w : p.flat()) w = support::Random::rounded<T>(random.normal() / 4);
  };
  ff.up().update(draw);
  ff.down().update(draw);
}

/// The activations by the C library, in double.
double activated(const mha::Gelu&, double x) { return x / 2 * std::erfc(-x / std::sqrt(2.)); }
double activated(const mha::GeluTanh&, double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.)) * (x + 0.044715 * x * x * x)));
}
double activated(const mha::Relu&, double x) { return std::max(x, 0.); }
double activated(const mha::Silu&, double x) { return x / (1 + std::exp(-x)); }

/// y by loops in double, of the same numbers, and a bound: the error of the hidden row through the second product.
template <class B, class T, class F> void expect_right(support::Random& random) {
  const Index batch = 1 + random.below(3), length = 1 + random.below(12), model = 1 + random.below(40),
              hidden = 1 + random.below(70);
  mha::FeedForward<T, B, F> ff({.d_model = model, .d_hidden = hidden, .bias = random.chance(0.6)});
  draw_weights(ff, random);
  support::Rows<T> x(support::lies[random.below(5)], batch, length, model),
      r(support::lies[random.below(5)], batch, length, model), y(support::lies[random.below(5)], batch, length, model);
  x.draw(random);
  r.draw(random);
  const bool residual = random.chance(0.5);
  if (residual)
    ff(x.read(), mha::into(y.view), mha::residual(r.read()));
  else
    ff(x.read(), mha::into(y.view));

  const auto up = ff.up().parameters(), down = ff.down().parameters();
  const double operand = support::operand_error<B, T>(), u = support::unit_roundoff<mha::Accumulator<T>>();
  const auto activation = [](double g) {
    if constexpr (mha::detail::is_gated<F>)
      return activated(F{}.activation, g);
    else
      return activated(F{}, g);
  };
  support::Worst worst;
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l) {
      std::vector<support::Bounded> row;
      for (Index h = 0; h < hidden; ++h) {
        // The sums with their bounds as a Linear without activation has them, then the C library's activation.
        auto ungated = up;
        ungated.gate = {};
        const auto sum = support::linear_oracle(x.read(), ungated, mha::Identity{}, b, l, h, operand);
        support::Bounded e;
        if constexpr (mha::detail::is_gated<F>) {
          auto gate = up;
          gate.weight = up.gate;
          gate.bias = up.gate_bias;
          const auto g = support::linear_oracle(x.read(), gate, mha::Identity{}, b, l, h, operand);
          const double f = activation(g.value);
          e = {f * sum.value, (std::abs(f) + 1.2 * g.error) * sum.error + 1.2 * std::abs(sum.value) * g.error +
                                  32 * u * std::abs(f * sum.value)};
        } else {
          const double f = activation(sum.value);
          e = {f, 1.2 * sum.error + 32 * u * (std::abs(f) + std::abs(sum.value))};
        }
        e.error += support::storage_error<T>(e.value);
        row.push_back(e);
      }
      for (Index j = 0; j < model; ++j) {
        double value = down.bias.data != nullptr ? support::to_double(down.bias(j)) : 0, size = std::abs(value),
               error = 0;
        for (Index h = 0; h < hidden; ++h) {
          const double w = support::to_double(down.weight(h, j));
          const auto& e = row[static_cast<std::size_t>(h)];
          value += e.value * w;
          size += std::abs(e.value * w);
          error += e.error * std::abs(w);
        }
        error += size * ((hidden + 4) * u + 2 * operand) + support::storage_error<T>(value);
        if (residual) value += support::to_double(r.view(b, l, j));
        worst.see(support::to_double(y.view(b, l, j)), value,
                  error + support::storage_error<T>(value) + 4 * u * std::abs(value), {b, l, j});
      }
    }
  EXPECT_LE(worst.error(), 1) << worst.text();
  EXPECT_EQ(y.spoilt(), 0u);
}

template <class B, class T> void expect_right_with_every_activation() {
  support::Random random(testing::UnitTest::GetInstance()->current_test_info()->test_suite_name());
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    expect_right<B, T, mha::Gelu>(random);
    expect_right<B, T, mha::SwiGlu>(random);
    if constexpr (std::is_same_v<T, float>) {
      expect_right<B, T, mha::GeluTanh>(random);
      expect_right<B, T, mha::Relu>(random);
      expect_right<B, T, mha::Silu>(random);
      expect_right<B, T, mha::GeGlu>(random);
    }
  }
}

template <class T> class FeedForward : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(FeedForward, Scalars);

TYPED_TEST(FeedForward, AgreesWithLoops) {
  expect_right_with_every_activation<mha::Cpu, TypeParam>();
  expect_right_with_every_activation<mha::Reference, TypeParam>();
}
TEST(FeedForwardOnOthers, AgreesWithLoops) {
  expect_right_with_every_activation<mha::CpuWith<mha::Serial>, float>();
  expect_right_with_every_activation<mha::Systolic<>, float>();
  expect_right_with_every_activation<mha::Systolic<>, mha::bfloat16>();
  expect_right_with_every_activation<support::PlainBackend, float>();
}

TEST(FeedForwardBits, ARowDependsOnItselfAlone) {
  support::Random random("rows");
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 45, .d_hidden = 131});
  draw_weights(ff, random);
  Tensor<float, 2> x(70, 45);
  random.fill(x);
  const mha::Cpu one(mha::ThreadPool(1)), three(mha::ThreadPool(3));
  const auto all = ff(x, mha::residual(x), three);
  EXPECT_EQ(support::differing(all, ff(x, mha::residual(x), one)), 0u);
  for (Index i = 0; i < 70; ++i) {
    const auto row = mha::view(&std::as_const(x)(i, 0), 1, 45);
    const auto alone = ff(row, mha::residual(row));
    for (Index j = 0; j < 45; ++j) EXPECT_EQ(support::bits(alone(0, j)), support::bits(all(i, j)));
  }
}

TEST(FeedForwardCall, TheResultMayBeXAndTheResidual) {
  support::Random random("in place");
  mha::FeedForward<float> ff({.d_model = 24, .d_hidden = 56});
  draw_weights(ff, random);
  Tensor<float, 3> x(2, 5, 24);
  random.fill(x);
  const auto plain = ff(x), added = ff(x, mha::residual(x));
  Tensor<float, 3> y = x;
  ff(y, mha::into(y));
  EXPECT_EQ(support::differing(y, plain), 0u);
  y = x;
  ff(y, mha::into(y), mha::residual(y));
  EXPECT_EQ(support::differing(y, added), 0u);
}

TEST(FeedForwardCall, WorksInTheMemoryOfAnotherMachine) {
  support::Random random("far");
  mha::FeedForward<float, support::Far, mha::GeGlu> there({.d_model = 6, .d_hidden = 9});
  mha::FeedForward<float, mha::Reference, mha::GeGlu> here({.d_model = 6, .d_hidden = 9});
  draw_weights(here, random);
  there.up().borrow(here.up().parameters());
  there.down().borrow(here.down().parameters());
  Tensor<float, 3> x(2, 5, 6);
  random.fill(x);
  const support::FarTensor<float, 3> far(x);
  EXPECT_EQ(support::differing(there(far, mha::residual(far)).near(), here(x, mha::residual(x))), 0u);
}

TEST(FeedForwardMemory, AWorkspaceIsReused) {
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 24, .d_hidden = 56});
  ff.initialize(mha::XavierUniform{.seed = 1});
  Tensor<float, 2> x(130, 24), y(130, 24);
  mha::Workspace workspace;
  ff(x, mha::into(y), workspace);
  const int before = workspace.allocations();
  ff(x, mha::into(y), mha::residual(x), workspace);
  EXPECT_EQ(workspace.allocations(), before);
}

TEST(FeedForwardWeights, AreDrawnApart) {
  mha::FeedForward<float> ff({.d_model = 7, .d_hidden = 7});
  ff.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(ff.parameter_count(), 2 * 56);
  const auto up = ff.up().parameters().flat(), down = ff.down().parameters().flat();
  EXPECT_FALSE(std::equal(up.begin(), up.end(), down.begin()));
  mha::FeedForward<float, mha::Reference> again({.d_model = 7, .d_hidden = 7});
  again.initialize(mha::XavierUniform{.seed = 1});
  const auto same = again.down().parameters().flat();
  EXPECT_TRUE(std::equal(down.begin(), down.end(), same.begin()));
}

TEST(FeedForwardErrors, NameTheAxisAndBothValues) {
  mha::FeedForward<float> ff({.d_model = 4, .d_hidden = 6, .bias = false});
  const Tensor<float, 2> x(5, 4), wide(5, 6);
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(x)); }),
            "feed_forward: up(): expected 24 weights, got 0: call initialize, update or borrow first");
  ff.up().initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(x)); }),
            "feed_forward: down(): expected 24 weights, got 0: call initialize, update or borrow first");
  ff.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(wide)); }), "feed_forward: x has width 6 but d_model is 4");
  Tensor<float, 2> y(5, 6), few(4, 4), z(5, 4);
  support::poison_all(z);
  EXPECT_EQ(message_of([&] { ff(x, mha::into(y)); }), "feed_forward: the result has width 6, expected 4");
  EXPECT_EQ(message_of([&] { ff(x, mha::into(z), mha::residual(few)); }),
            "feed_forward: x has length 5 but the residual has length 4");
  for (const float v : z) EXPECT_EQ(support::bits(v), support::bits(support::poison<float>()));
  EXPECT_EQ(message_of([] { mha::FeedForward<float>({.d_model = 4}); }),
            "FeedForward: d_hidden is 0, it must be at least 1");
  EXPECT_EQ(message_of([] { mha::FeedForward<float>({.d_hidden = 4}); }),
            "FeedForward: d_model is 0, it must be at least 1");
}

TEST(FeedForwardErrors, AssignedLinearsOfOtherSizesAreRefused) {
  using FF = mha::FeedForward<float>;
  const Tensor<float, 2> x(5, 4);
  const auto expect = [&](Index model_in, Index hidden_out, Index hidden_in, Index model_out, const std::string& text) {
    FF ff({.d_model = 4, .d_hidden = 6});
    ff.up() = FF::Up({.inputs = model_in, .outputs = hidden_out});
    ff.down() = FF::Down({.inputs = hidden_in, .outputs = model_out});
    ff.initialize(mha::XavierUniform{.seed = 1});
    auto tape = ff.tape();
    EXPECT_EQ(message_of([&] { static_cast<void>(ff(x)); }), "feed_forward: " + text);
    EXPECT_EQ(message_of([&] { static_cast<void>(ff(x, tape)); }), "feed_forward: " + text);
    EXPECT_FALSE(tape.recorded());
  };
  expect(5, 6, 6, 4, "up() has 5 inputs but d_model is 4");
  expect(4, 3, 6, 4, "up() has 3 outputs but d_hidden is 6");
  expect(4, 70, 70, 4, "up() has 70 outputs but d_hidden is 6");
  expect(4, 6, 7, 4, "down() has 7 inputs but d_hidden is 6");
  expect(4, 6, 6, 3, "down() has 3 outputs but d_model is 4");

  FF ff({.d_model = 4, .d_hidden = 6});  // of a trained one: as it is
  FF::Up up({.inputs = 4, .outputs = 6});
  ff.initialize(mha::XavierUniform{.seed = 1});
  up.initialize(mha::XavierUniform{.seed = 1});
  const Tensor<float, 2> before = ff(x);
  ff.up() = up;
  const Tensor<float, 2> after = ff(x);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));

  auto tape = ff.tape();
  auto gradients = ff.gradients();
  const Tensor<float, 2> y = ff(x, tape);
  ff.down() = FF::Down({.inputs = 7, .outputs = 4});
  ff.down().initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { static_cast<void>(ff.backward(y, tape, gradients)); }),
            "backward: down() has 7 inputs but d_hidden is 6");
}

TEST(FeedForwardErrors, ANullActivationIsRefusedAtConstruction) {
  using F = mha::Gated<float (*)(float)>;
  EXPECT_EQ(message_of([] { mha::FeedForward<float, mha::Cpu, F>({.d_model = 2, .d_hidden = 2}); }),
            "activation: the function is null, expected one to call");
}

TEST(FeedForwardCost, IsThatOfBothProducts) {
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 4, .d_hidden = 6, .bias = false});
  EXPECT_EQ(ff.cost(5).parameters, 3 * 24);
  EXPECT_EQ(ff.cost(5).flop, 2. * 5 * 3 * 24);
  EXPECT_NE(ff.explain(5).find("activation:  gated silu"), std::string::npos);
  EXPECT_NE(ff.explain(5).find("workspace:   120 bytes for the hidden rows"), std::string::npos);
}

TEST(FeedForwardInitialize, DrawsBothOrNeither) {
  mha::FeedForward<float> ff({.d_model = 4, .d_hidden = 6, .bias = false});
  const Tensor<float, 2> weight(6, 4);
  ff.down().borrow({.weight = weight});
  EXPECT_EQ(message_of([&] { ff.initialize(mha::XavierUniform{.seed = 1}); }),
            "update: down(): the Linear's 24 parameters are borrowed, so they cannot be written: copy them in the "
            "update() of a new one");
  EXPECT_EQ(ff.up().parameters().weight.data, nullptr);
}

}  // namespace
