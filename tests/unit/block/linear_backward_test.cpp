// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"
#include "compare.hpp"
#include "every_isa.hpp"
#include "linear_oracle.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Reference;
using support::message_of;
using support::random_rows;
using Rows = mha::Tensor<double, 3>;

/// A user's, differentiated by dual numbers.
struct Wavy {
  template <class S> S operator()(const S& x) const {
    return mha::tanh(x) * S(0.75f) + mha::exp(-mha::abs(x)) * x * mha::select(x < S(0), S(1), S(2));
  }
};
/// A user's of plain numbers, with its own derivative.
struct Cubic {
  double weight = 0.125;
  double operator()(double x) const { return weight * x * x * x - x; }
  double derivative(double x) const { return 3 * weight * x * x - 1; }
};

/// Whether a difference quotient may step over 0, where Relu and Wavy have a kink.
template <class L> bool near_a_kink(const L& linear, const Rows& x) {
  const auto w = linear.parameters();
  for (const auto& [matrix, bias] : {std::pair{w.weight, w.bias}, std::pair{w.gate, w.gate_bias}})
    for (Index row = 0; row < x.extent(0) * x.extent(1); ++row)
      for (Index j = 0; j < matrix.extent[1]; ++j) {
        double sum = bias.data == nullptr ? 0 : bias(j);
        for (Index i = 0; i < matrix.extent[0]; ++i) sum += x.data()[row * x.extent(2) + i] * matrix(i, j);
        if (std::abs(sum) < 1e-4) return true;
      }
  return false;
}

template <class F> void expect_quotients(const std::string& name, bool bias, const F& activation = {}) {
  mha::Linear<double, Reference, F> linear({.inputs = 5, .outputs = 4, .bias = bias}, activation);
  Rows x(2, 3, 5);
  for (int draws = 0; draws == 0 || near_a_kink(linear, x); ++draws) {
    const std::string stream = name + " " + std::to_string(draws);
    support::draw(linear, stream, 0.6);
    x = random_rows(stream + " x", 2, 3, 5);
  }
  const Rows dy = random_rows(name + " dy", 2, 3, 4), r = random_rows(name + " r", 2, 3, 4);
  auto tape = linear.tape();
  auto g = linear.gradients();
  const Rows y = linear(x, tape, mha::residual(r));
  EXPECT_EQ(support::differing(y, linear(x, mha::residual(r))), 0u) << name;
  const Rows dx = linear.backward(dy, tape, g);
  const auto loss = [&] { return support::inner(dy, linear(x, mha::residual(r))); };
  support::expect_row_gradients(name.c_str(), x, dx, loss);
  support::expect_parameter_gradients(name.c_str(), linear, g, loss);
}

TEST(LinearBackward, EqualsDifferenceQuotients) {
  expect_quotients<mha::Identity>("identity", true);
  expect_quotients<mha::Identity>("identity, no bias", false);
  expect_quotients<mha::Relu>("relu", true);
  expect_quotients<mha::Gelu>("gelu", true);
  expect_quotients<mha::GeluTanh>("gelu_tanh", true);
  expect_quotients<mha::Silu>("silu", false);
  expect_quotients<mha::SwiGlu>("swiglu", false);
  expect_quotients<mha::GeGlu>("geglu", true);
  expect_quotients<mha::Gated<mha::Identity>>("bilinear", true);
  expect_quotients<Wavy>("dual", true);
  expect_quotients<mha::Gated<Wavy>>("gated dual", true);
  expect_quotients<Cubic>("own derivative", true, Cubic{0.25});
  expect_quotients<mha::Gated<Cubic>>("gated, own derivative", true, {{0.25}});
}

/// Gradients of a Linear as loops in double, by the definition of the derivative of F alone.
template <class T, class B, class F, class Slope>
void expect_loops(const char* name, double bound, const F& f, const Slope& slope, support::Lie lie) {
  using A = mha::Accumulator<T>;
  constexpr bool gated = mha::detail::is_gated<F>;
  constexpr Index batch = 2, length = 67, in = 21, out = 35;
  mha::Linear<T, B, F> linear({.inputs = in, .outputs = out}, f);
  support::draw(linear, name, 0.3);
  support::Random random(name);
  support::Rows<T> x(lie, batch, length, in), dy(lie, batch, length, out), dx(lie, batch, length, in);
  x.draw(random);
  dy.draw(random);
  auto tape = linear.tape();
  auto g = linear.gradients();
  static_cast<void>(linear(x.view, tape));
  linear.backward(dy.view, tape, g, mha::into(dx.view));
  EXPECT_EQ(dx.spoilt(), 0u);

  const auto w = linear.parameters();
  const auto number = [](auto v) { return support::to_double(v); };
  std::vector<double> dw(std::size_t{in * out}), dgate(dw.size()), db(std::size_t{out}), db_gate(db.size());
  support::NormWise of_x, of_w, of_b;
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l) {
      std::vector<double> row(std::size_t{in});
      for (Index j = 0; j < out; ++j) {
        const auto c = static_cast<std::size_t>(j);
        double sum = number(w.bias(j)), gate = gated ? number(w.gate_bias(j)) : 0;
        for (Index e = 0; e < in; ++e) {
          sum += number(x.view(b, l, e)) * number(w.weight(e, j));
          if (gated) gate += number(x.view(b, l, e)) * number(w.gate(e, j));
        }
        const double d = number(dy.view(b, l, j));
        double d_sum = 0, d_gate = 0;
        if constexpr (gated) {
          d_sum = d * f.activation(gate);
          d_gate = d * sum * slope(gate);
        } else {
          d_sum = d * slope(sum);
        }
        db[c] += d_sum;
        db_gate[c] += d_gate;
        for (Index e = 0; e < in; ++e) {
          const auto i = static_cast<std::size_t>(e);
          dw[i * std::size_t{out} + c] += number(x.view(b, l, e)) * d_sum;
          dgate[i * std::size_t{out} + c] += number(x.view(b, l, e)) * d_gate;
          row[i] += d_sum * number(w.weight(e, j)) + (gated ? d_gate * number(w.gate(e, j)) : 0);
        }
      }
      for (Index e = 0; e < in; ++e) of_x.add(number(dx.view(b, l, e)), row[static_cast<std::size_t>(e)]);
    }
  for (Index e = 0; e < in; ++e)
    for (Index j = 0; j < out; ++j) {
      const auto i = static_cast<std::size_t>(e * out + j);
      of_w.add(g.weight(e, j), dw[i]);
      if (gated) of_w.add(g.gate(e, j), dgate[i]);
    }
  for (Index j = 0; j < out; ++j) {
    of_b.add(g.bias(j), db[static_cast<std::size_t>(j)]);
    if (gated) of_b.add(g.gate_bias(j), db_gate[static_cast<std::size_t>(j)]);
  }
  const double rounded = std::is_same_v<T, A> ? 0 : support::unit_roundoff<T>();
  EXPECT_LT(of_x.error(), bound + rounded) << name;
  EXPECT_LT(of_w.error(), bound) << name;
  EXPECT_LT(of_b.error(), bound) << name;
}

const auto gelu_slope = [](double x) {
  return std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
};
const auto silu_slope = [](double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
};

TEST(LinearBackward, EqualsLoopsAtEveryLevel) {
  support::at_every_isa([] {
    for (const support::Lie lie : support::lies) {
      expect_loops<float, mha::Cpu>("gelu float", 2e-6, mha::Gelu{}, gelu_slope, lie);
      expect_loops<float, mha::Cpu>("swiglu float", 2e-6, mha::SwiGlu{}, silu_slope, lie);
    }
    expect_loops<double, mha::Cpu>("gelu double", 1e-14, mha::Gelu{}, gelu_slope, support::Lie::dense);
    expect_loops<double, mha::Cpu>("swiglu double", 1e-14, mha::SwiGlu{}, silu_slope, support::Lie::by_columns);
    // Weights, rows and their gradients are rounded to storage; sums and gradients of weights are not.
    expect_loops<mha::half, mha::Cpu>("gelu half", 4e-6, mha::Gelu{}, gelu_slope, support::Lie::dense);
    expect_loops<mha::bfloat16, mha::Cpu>("swiglu bfloat16", 4e-6, mha::SwiGlu{}, silu_slope, support::Lie::padded);
    expect_loops<mha::bfloat16, mha::Cpu>(
        "plain bfloat16", 4e-6, mha::Identity{}, [](double) { return 1; }, support::Lie::columns_apart);
  });
  // Reference rounds sums to storage before the activation.
  expect_loops<mha::bfloat16, Reference>("gelu, reference", 8e-3, mha::Gelu{}, gelu_slope, support::Lie::dense);
}

template <class T, class B, class F> void expect_bits(const char* name) {
  for (const Index length : {1, 3, 70}) {
    mha::Linear<T, B, F> linear({.inputs = 40, .outputs = 51});
    support::draw(linear, name, 0.3);
    const auto x = random_rows<T>("bits x", 2, length, 40), r = random_rows<T>("bits r", 2, length, 51);
    auto tape = linear.tape();
    EXPECT_EQ(support::differing(linear(x, tape), linear(x)), 0u) << name << length;
    auto y = r;
    static_cast<void>(linear(x, tape, mha::residual(y), mha::into(y)));
    EXPECT_EQ(support::differing(y, linear(x, mha::residual(r))), 0u) << name << length;
  }
}

TEST(LinearBackward, ACallOnATapeHasTheBitsOfOneWithout) {
  support::at_every_isa([] {
    expect_bits<float, mha::Cpu, mha::Gelu>("gelu");
    expect_bits<float, mha::Cpu, mha::Identity>("plain");
    expect_bits<double, mha::Cpu, mha::SwiGlu>("swiglu");
    expect_bits<mha::half, mha::Cpu, mha::GeluTanh>("gelu_tanh");
    expect_bits<mha::bfloat16, mha::Cpu, mha::GeGlu>("geglu");
    expect_bits<mha::bfloat16, mha::Cpu, Wavy>("wavy");
    expect_bits<mha::bfloat16, mha::Cpu, mha::Identity>("plain bfloat16");
  });
  expect_bits<mha::bfloat16, Reference, mha::Gelu>("gelu, reference");
  expect_bits<double, Reference, mha::SwiGlu>("swiglu, reference");
}

template <class Threads> std::vector<float> outcome(const Threads& threads) {
  using B = mha::CpuWith<Threads>;
  mha::Linear<float, B, mha::SwiGlu> linear({.inputs = 48, .outputs = 100}, B(threads));
  support::draw(linear, "threads", 0.2);
  const auto x = random_rows<float>("threads x", 3, 250, 48), dy = random_rows<float>("threads dy", 3, 250, 100);
  mha::Tensor<float, 3> dx(3, 250, 48);
  auto tape = linear.tape();
  auto g = linear.gradients();
  static_cast<void>(linear(x, tape));
  linear.backward(dy, tape, g, mha::into(dx));
  std::vector<float> all(g.flat().begin(), g.flat().end());
  all.insert(all.end(), dx.begin(), dx.end());
  return all;
}

TEST(LinearBackward, BitsDoNotDependOnTheThreads) {
  const auto one = outcome(mha::Serial{});
  for (const int threads : {1, 2, 3, 5}) EXPECT_EQ(support::differing(one, outcome(mha::ThreadPool(threads))), 0u);
}

TEST(LinearBackward, AddsToTheGradientsAndTakesATapeTwice) {
  mha::Linear<double, mha::Cpu, mha::GeGlu> linear({.inputs = 8, .outputs = 5});
  support::draw(linear, "adds", 0.3);
  const Rows x = random_rows("adds x", 2, 5, 8), dy = random_rows("adds dy", 2, 5, 5);
  auto tape = linear.tape();
  auto once = linear.gradients(), twice = linear.gradients();
  EXPECT_FALSE(tape.recorded());
  static_cast<void>(linear(x, tape));
  EXPECT_TRUE(tape.recorded());
  const Rows dx = linear.backward(dy, tape, once);
  static_cast<void>(linear.backward(dy, tape, twice));
  auto moved = std::move(tape);
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(support::differing(linear.backward(dy, moved, twice), dx), 0u);
  for (std::size_t i = 0; i < once.flat().size(); ++i) EXPECT_EQ(2 * once.flat()[i], twice.flat()[i]);
  auto assigned = linear.tape();
  assigned = std::move(moved);
  EXPECT_FALSE(moved.recorded());  // NOLINT(bugprone-use-after-move)
  twice.clear();
  EXPECT_EQ(support::differing(linear.backward(dy, assigned, twice), dx), 0u);
  EXPECT_TRUE(std::equal(once.flat().begin(), once.flat().end(), twice.flat().begin()));
  twice.clear();
  for (const double g : twice.flat()) EXPECT_EQ(g, 0);
  // A copy of the Linear has the same weights.
  const auto copy = linear;
  EXPECT_EQ(support::differing(copy.backward(dy, assigned, twice), dx), 0u);
}

TEST(LinearBackward, WhatStandsInARowWithoutAGradientReachesNobody) {
  mha::Linear<float, mha::Cpu, mha::SwiGlu> linear({.inputs = 9, .outputs = 20});
  support::draw(linear, "nan", 0.3);
  auto x = random_rows<float>("nan x", 1, 6, 9), dy = random_rows<float>("nan dy", 1, 6, 20);
  for (Index j = 0; j < 20; ++j) dy(0, 3, j) = 0;
  auto tape = linear.tape();
  auto clean = linear.gradients(), g = linear.gradients();
  static_cast<void>(linear(x, tape));
  const auto dx = linear.backward(dy, tape, clean);
  for (Index e = 0; e < 9; ++e) x(0, 3, e) = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(linear(x, tape));
  EXPECT_EQ(support::differing(linear.backward(dy, tape, g), dx), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), clean.flat().begin()));
  for (Index e = 0; e < 9; ++e) EXPECT_EQ(dx(0, 3, e), 0);
  // A NaN that counts propagates.
  x(0, 1, 2) = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(linear(x, tape));
  static_cast<void>(linear.backward(dy, tape, g));
  EXPECT_TRUE(std::isnan(g.weight(0, 0)));
}

TEST(LinearBackward, DxOverlapsNoParameterOfAnyKind) {
  mha::Linear<float, mha::Cpu, mha::SwiGlu> linear({.inputs = 3, .outputs = 5});
  support::draw(linear, "kinds", 0.3);
  const auto x = random_rows<float>("kinds x", 1, 1, 3), dy = random_rows<float>("kinds dy", 1, 1, 5);
  auto tape = linear.tape();
  auto g = linear.gradients();
  static_cast<void>(linear(x, tape));
  int parts = 0;
  const auto look = [&](const char* name, const auto& part) {
    const std::vector<float> before(part.data, part.data + part.size());
    EXPECT_EQ(
        message_of([&] { linear.backward(dy, tape, g, mha::into(mha::view(const_cast<float*>(part.data), 1, 1, 3))); }),
        std::string("backward: dx overlaps the parameter '") + name + "'");
    EXPECT_TRUE(std::equal(before.begin(), before.end(), part.data));
    ++parts;
  };
  const auto p = linear.parameters();
  mha::detail::PartsOf<mha::LinearViews<const float>>::each(look, p);
  EXPECT_EQ(parts, 4);
  for (const float d : g.flat()) EXPECT_EQ(d, 0);
}

TEST(LinearBackward, RefusesWhatDoesNotFitAndChangesNothing) {
  using Linear = mha::Linear<double, mha::Cpu, mha::Gelu>;
  Linear linear({.inputs = 8, .outputs = 8}), other({.inputs = 8, .outputs = 8}),
      bare({.inputs = 8, .outputs = 8, .bias = false});
  Rows x = random_rows("refuses x", 2, 5, 8), dy = random_rows("refuses dy", 2, 5, 8), narrow(2, 5, 6);
  const Rows wide(4, 9, 7);
  auto tape = linear.tape();
  auto g = linear.gradients(), foreign = bare.gradients();
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(x, tape)); }),
            "linear: expected 72 weights, got 0: call initialize, update or borrow first");
  for (Linear* l : {&linear, &other, &bare}) support::draw(*l, "refuses", 0.3);
  const auto backward = [&](const auto& d, auto& to, const auto&... extra) {
    return message_of([&] { static_cast<void>(linear.backward(d, tape, to, extra...)); });
  };
  EXPECT_EQ(backward(dy, g), "backward: nothing was recorded on the tape: call it with x and the tape first");
  static_cast<void>(linear(x, tape));
  const Rows before = linear.backward(dy, tape, g);

  const std::string weights =
      "backward: the tape was recorded with other weights: by another Linear, or before this one's weights changed";
  EXPECT_EQ(message_of([&] { static_cast<void>(other.backward(dy, tape, g)); }), weights);
  EXPECT_EQ(backward(Rows(2, 4, 8), g), "backward: x has length 5 but dy has length 4");
  EXPECT_EQ(backward(Rows(1, 5, 8), g), "backward: x has batch 2 but dy has batch 1");
  EXPECT_EQ(backward(Rows(2, 5, 7), g), "backward: dy has width 7, expected 8");
  EXPECT_EQ(backward(dy, g, mha::into(narrow)), "backward: dx has width 6, expected 8");
  EXPECT_EQ(backward(dy, g, mha::into(x)), "backward: dx overlaps x");
  EXPECT_EQ(backward(dy, g, mha::into(dy)), "backward: dx overlaps dy");
  auto large = mha::Linear<double>({.inputs = 8, .outputs = 80}).gradients();
  EXPECT_EQ(backward(dy, large),
            "backward: the gradients are of other sizes: on axis 1 their weight has extent 80, expected 8");
  EXPECT_EQ(backward(dy, foreign),
            "backward: the gradients are of other sizes: on axis 0 their bias has extent 0, expected 8");
  const Rows small = random_rows("refuses small", 1, 5, 8);
  auto own = linear.tape();
  static_cast<void>(linear(small, own));
  EXPECT_EQ(message_of([&] { linear.backward(small, own, g, mha::into(mha::view(g.flat().data(), 1, 5, 8))); }),
            "backward: dx overlaps the gradients");
  EXPECT_EQ(message_of([&] { static_cast<void>(linear.backward(mha::view(g.flat().data(), 1, 5, 8), own, g)); }),
            "backward: dy overlaps the gradients");
  const auto x_in_gradients = mha::view(g.flat().data(), 1, 5, 8);
  auto of_gradients = linear.tape();
  static_cast<void>(linear(x_in_gradients, of_gradients));
  EXPECT_EQ(message_of([&] { static_cast<void>(linear.backward(Rows(1, 5, 8), of_gradients, g)); }),
            "backward: x overlaps the gradients");
  Linear borrowing({.inputs = 8, .outputs = 8});
  mha::Tensor<double, 2> borrowed(8, 8);
  borrowing.borrow({.weight = borrowed, .bias = linear.parameters().bias});
  auto of_borrowed = borrowing.tape();
  static_cast<void>(borrowing(small, of_borrowed));
  EXPECT_EQ(
      message_of([&] { borrowing.backward(small, of_borrowed, g, mha::into(mha::view(borrowed.data(), 1, 5, 8))); }),
      "backward: dx overlaps the parameter 'weight'");
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(x, tape, mha::into(x))); }),
            "linear: the result overlaps x, which the backward pass of the tape reads");
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(x, tape, mha::residual(narrow))); }),
            "linear: the residual has width 6, expected 8");
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(wide, tape)); }), "linear: x has width 7 but inputs is 8");

  // Tape and gradients are as they were.
  auto fresh = linear.gradients();
  EXPECT_EQ(support::differing(linear.backward(dy, tape, fresh), before), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), fresh.flat().begin()));

  linear.update([](auto& p) { p.flat()[0] += 1; });
  EXPECT_EQ(backward(dy, g), weights);
  static_cast<void>(linear(x, tape));
  linear.borrow(other.parameters());
  EXPECT_EQ(backward(dy, g), weights);
  static_cast<void>(linear(x, tape));
  linear.drop_unpacked();
  EXPECT_EQ(backward(dy, g), "");  // the weights are the same
}

TEST(LinearBackward, ReadsBorrowedWeights) {
  mha::Linear<float, mha::Cpu, mha::SwiGlu> own({.inputs = 12, .outputs = 7}), borrower({.inputs = 12, .outputs = 7});
  support::draw(own, "borrowed", 0.3);
  mha::Tensor<float, 2> turned(7, 12);
  const auto w = own.parameters();
  for (Index i = 0; i < 7; ++i)
    for (Index j = 0; j < 12; ++j) turned(i, j) = w.weight(j, i);
  mha::BorrowedLinear<float> lent{.weight = mha::transposed(turned.view())};
  static_cast<mha::TensorView<const float, 1>&>(lent.bias) = w.bias;
  static_cast<mha::TensorView<const float, 2>&>(lent.gate) = w.gate;
  static_cast<mha::TensorView<const float, 1>&>(lent.gate_bias) = w.gate_bias;
  borrower.borrow(lent);
  const auto x = random_rows<float>("borrowed x", 1, 9, 12), dy = random_rows<float>("borrowed dy", 1, 9, 7);
  auto tape = own.tape(), other = borrower.tape();
  auto g = own.gradients(), of_other = borrower.gradients();
  static_cast<void>(own(x, tape));
  static_cast<void>(borrower(x, other));
  EXPECT_EQ(support::differing(own.backward(dy, tape, g), borrower.backward(dy, other, of_other)), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), of_other.flat().begin()));
}

TEST(LinearBackward, ServesABatchWithoutRowsAndTwoAxes) {
  mha::Linear<double, mha::Cpu, mha::SwiGlu> linear({.inputs = 8, .outputs = 3});
  support::draw(linear, "empty", 0.3);
  auto tape = linear.tape();
  auto g = linear.gradients();
  const Rows none(0, 3, 8), no_rows(2, 0, 8);
  static_cast<void>(linear(none, tape));
  EXPECT_EQ(linear.backward(Rows(0, 3, 3), tape, g).size(), 0u);
  static_cast<void>(linear(no_rows, tape));
  EXPECT_EQ(linear.backward(Rows(2, 0, 3), tape, g).size(), 0u);
  for (const double d : g.flat()) EXPECT_EQ(d, 0);
  const mha::Tensor<double, 2> x(4, 8), dy(4, 3);
  static_cast<void>(linear(x, tape));
  const mha::Tensor<double, 2> dx = linear.backward(dy, tape, g);
  EXPECT_EQ(dx.extent(1), 8);
}

}  // namespace
