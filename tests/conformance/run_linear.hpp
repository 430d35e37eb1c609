// SPDX-License-Identifier: Apache-2.0
// One case of a Linear or a feed-forward on the machine that it names, against the loops of block_oracle.cpp.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "run_block.hpp"

namespace blocks {

/// The library's activations and one of a user's, chosen at run time, so that kernels are compiled for one type.
struct AnyFunction {
  Function kind = Function::relu;

  template <class S> MHA_HOST_DEVICE S operator()(const S& x) const {
    switch (kind) {
      case Function::relu:
        return mha::Relu{}(x);
      case Function::gelu:
        return mha::Gelu{}(x);
      case Function::gelu_tanh:
        return mha::GeluTanh{}(x);
      case Function::silu:
        return mha::Silu{}(x);
      case Function::bent:
        break;
    }
    return support::Bent{}(x);
  }
  template <class S> MHA_HOST_DEVICE S derivative(const S& x) const {
    switch (kind) {
      case Function::relu:
        return mha::Relu{}.derivative(x);
      case Function::gelu:
        return mha::Gelu{}.derivative(x);
      case Function::gelu_tanh:
        return mha::GeluTanh{}.derivative(x);
      case Function::silu:
        return mha::Silu{}.derivative(x);
      case Function::bent:
        break;
    }
    return mha::select(x <= S(0), S(0.25f), S(1));
  }
};
/// The activation of a level, with the function that a case names.
template <Form form> auto activation_of([[maybe_unused]] Function f) {
  if constexpr (form == Form::plain)
    return mha::Identity{};
  else if constexpr (form == Form::function)
    return AnyFunction{f};
  else
    return mha::Gated<AnyFunction>{{f}};
}

/// Matrices of a Linear as a checkpoint may have them, in W, and what stands in them.
template <class W> class Stored {
 public:
  Stored(WeightsKind how, Index in, Index out, bool with_bias, bool with_gate, Random& random) {
    matrix(0, how, in, out, random, numbers.weight);
    if (with_gate) matrix(1, how, in, out, random, numbers.gate);
    if (with_bias) row(0, how, out, random, numbers.bias);
    if (with_bias && with_gate) row(1, how, out, random, numbers.gate_bias);
  }

  mha::BorrowedLinear<W> borrowed() const { return {matrix_[0], row_[0], matrix_[1], row_[1]}; }

  LinearNumbers numbers;

 private:
  void matrix(int i, WeightsKind how, Index in, Index out, Random& random, Numbers& to) {
    // Steps from one input to the next, and from one output.
    const bool turned = how == WeightsKind::transposed || how == WeightsKind::half, apart = how == WeightsKind::strided;
    const std::ptrdiff_t across = turned  ? 1
                                  : apart ? 2 * std::ptrdiff_t{out} + 3
                                          : out,
                         along = turned  ? std::ptrdiff_t{in} + (apart ? 1 : 0)
                                 : apart ? 2
                                         : 1;
    std::vector<W>& memory = memory_[i];
    memory.resize(static_cast<std::size_t>((in - 1) * across + (out - 1) * along + 1));
    support::poison_all(memory);
    mha::TensorView<W, 2> view{memory.data(), {in, out}, {across, along}};
    to = Numbers(in, out);
    for (Index k = 0; k < in; ++k)
      for (Index j = 0; j < out; ++j)
        to(k, j) = support::to_double(view(k, j) = Random::rounded<W>(random.normal() / 4));
    matrix_[i] = view;
  }
  void row(int i, WeightsKind how, Index out, Random& random, Numbers& to) {
    const std::ptrdiff_t step = how == WeightsKind::strided ? 3 : 1;
    std::vector<W>& memory = memory_[2 + i];
    memory.resize(static_cast<std::size_t>((out - 1) * step + 1));
    support::poison_all(memory);
    mha::TensorView<W, 1> view{memory.data(), {out}, {step}};
    to = Numbers(1, out);
    for (Index j = 0; j < out; ++j) to(0, j) = support::to_double(view(j) = Random::rounded<W>(random.normal()));
    row_[i] = view;
  }

  std::vector<W> memory_[4];
  mha::TensorView<const W, 2> matrix_[2]{};
  mha::TensorView<const W, 1> row_[2]{};
};

/// Weights of the kind that a case names; what holds them lives as long as the result.
template <class T, class Linear> auto give_weights(Linear& linear, WeightsKind how, bool gate, Random& random) {
  const mha::LinearConfig c = linear.config();
  struct Held {
    std::optional<Stored<T>> own;
    LinearNumbers numbers;
  } held;
  const auto narrow = [&]<class W>(const W&) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      const Stored<W> stored(how, c.inputs, c.outputs, c.bias, gate, random);
      linear.borrow(stored.borrowed());
      held.numbers = stored.numbers;
    }
  };
  if (how == WeightsKind::half) return narrow(mha::half()), held;
  if (how == WeightsKind::bfloat16) return narrow(mha::bfloat16()), held;
  held.own.emplace(how, c.inputs, c.outputs, c.bias, gate, random);
  held.numbers = held.own->numbers;
  if (how == WeightsKind::updated) {
    linear.update([&](const auto& p) {
      const auto put = [](const Numbers& from, const auto& to) {
        for (Index k = 0; k < from.rows; ++k)
          for (Index j = 0; j < from.columns; ++j)
            if constexpr (std::remove_cvref_t<decltype(to)>::rank == 2)
              to(k, j) = Random::rounded<T>(from(k, j));
            else
              to(j) = Random::rounded<T>(from(k, j));
      };
      put(held.numbers.weight, p.weight);
      put(held.numbers.gate, p.gate);
      put(held.numbers.bias, p.bias);
      put(held.numbers.gate_bias, p.gate_bias);
    });
  } else {
    linear.borrow(held.own->borrowed());
  }
  return held;
}

template <class Views>
void compare_gradients(const char* which, const Precision& p, const LinearNumbers& expected, const Views& given) {
  SCOPED_TRACE(which);
  compare_added("the gradient of the weight", p, expected.weight, given.weight);
  compare_added("the gradient of the bias", p, expected.bias, given.bias);
  compare_added("the gradient of the gate", p, expected.gate, given.gate);
  compare_added("the gradient of the gate's bias", p, expected.gate_bias, given.gate_bias);
}

/// A call and, where the program has one, its backward pass.
///
/// expected(x, residual)           what y should be
/// check(x, dy, g)                 checks gradients g of the weights, and returns what those of x should be
template <class B, Program p, class T, class Block, class Expected, class Check>
void run_rows(const Case& c, const Block& block, Index in, Index out, Random& random, const Expected& expected,
              const Check& check) {
  const Index batch = c.number(blocks::batch), length = c.number(blocks::length);
  const auto how = c.at<ResultKind>(result);
  const auto lying = [&](int n) { return support::lies[(c.row[rows] + n) % 5]; };
  Carried<B, T> x(lying(0), batch, length, in), r(lying(2), batch, length, out), own(lie_of(how), batch, length, out);
  x.draw(random);
  r.draw(random);
  const bool in_x = how == ResultKind::x, over = c.at<ResidualKind>(residual) == ResidualKind::result;
  Carried<B, T>&y = in_x ? x : own, &added = over ? y : r;
  if (over && !in_x) own.copy(r.read());
  for (Carried<B, T>* sent : {&x, &r, &own}) sent->send();
  const Numbers from = exact(x.view), wanted = expected(from, p.residual ? exact(added.view) : Numbers());

  static typename B::Workspace workspace;
  poison_workspace<B>(workspace);
  const auto call = [&](auto&... tape) {
    const auto x_there = x.there_to_read(), r_there = added.there_to_read();
    if constexpr (p.returned && p.residual) {
      const auto given = block(x_there, tape..., mha::residual(r_there), workspace);
      compare_tensor("the result", wanted, support::Transport<B>::fetched(given));
    } else if constexpr (p.returned) {
      compare_tensor("the result", wanted, support::Transport<B>::fetched(block(x_there, workspace, tape...)));
    } else {
      if constexpr (p.residual)
        block(x_there, workspace, tape..., mha::into(y.there()), mha::residual(r_there));
      else
        block(x_there, mha::into(y.there()), tape..., workspace);
      y.fetch();
      compare_rows("the result", wanted, y);
    }
  };
  if constexpr (p.backward) {
    auto tape = block.tape();
    call(tape);
    Rows<T> dy(lying(1), batch, length, out), dx(lie_of(how), batch, length, in);
    dy.draw(random);
    for (Index e = 0; e < out; ++e) dy.view(batch - 1, length - 1, e) = T(mha::Accumulator<T>(0));  // as of padding
    auto g = block.gradients();
    for (auto& number : g.flat()) number = mha::Accumulator<T>(0.25);
    poison_workspace<B>(workspace);
    if constexpr (p.returned) {
      const auto given = block.backward(dy.read(), tape, g, workspace);
      compare_tensor("the gradient of x", check(from, exact(dy.view), g), given);
    } else {
      block.backward(dy.read(), tape, g, mha::into(dx.view), workspace);
      compare_rows("the gradient of x", check(from, exact(dy.view), g), dx);
    }
  } else {
    call();
  }
}

template <class B, Program p> void run_linear(const Case& c, Random& random) {
  using T = typename ScalarOf<p.storage>::type;
  const auto f = c.at<Function>(function);
  const auto activation = activation_of<p.form>(f);
  const Index in = c.number(inputs), out = c.at<ResultKind>(result) == ResultKind::x ? in : c.number(outputs);
  mha::Linear<T, B, std::remove_const_t<decltype(activation)>> block(
      {.inputs = in, .outputs = out, .bias = c.row[bias] == 1}, activation);
  const auto held = give_weights<T>(block, c.at<WeightsKind>(weights), p.form == Form::gated, random);
  if (c.at<WeightsKind>(weights) == WeightsKind::dropped) block.drop_unpacked();
  const Precision precise = precision<B, T>();
  LinearAnswer wanted;
  run_rows<B, p, T>(
      c, block, in, out, random,
      [&](const Numbers& x, const Numbers& added_rows) {
        wanted = linear(precise, p.form, f, x, held.numbers, added_rows);
        return wanted.y;
      },
      [&](const Numbers& x, const Numbers& dy, const auto& given) {
        const LinearGradients g = linear_backward(precise, p.form, f, x, held.numbers, wanted, dy);
        compare_gradients("a Linear", precise, g.weights, given);
        return g.x;
      });
}

template <class B, Program p> void run_feed_forward(const Case& c, Random& random) {
  using T = typename ScalarOf<p.storage>::type;
  const auto f = c.at<Function>(function);
  const auto activation = activation_of<p.form>(f);
  const Index in = c.number(inputs);
  mha::FeedForward<T, B, std::remove_const_t<decltype(activation)>> block(
      {.d_model = in, .d_hidden = c.number(outputs), .bias = c.row[bias] == 1}, activation);
  const auto up = give_weights<T>(block.up(), c.at<WeightsKind>(weights), p.form == Form::gated, random);
  const auto down = give_weights<T>(block.down(), c.at<WeightsKind>(weights), false, random);
  if (c.at<WeightsKind>(weights) == WeightsKind::dropped) block.drop_unpacked();
  const Precision precise = precision<B, T>();
  LinearAnswer between, wanted;
  run_rows<B, p, T>(
      c, block, in, in, random,
      [&](const Numbers& x, const Numbers& added_rows) {
        between = linear(precise, p.form, f, x, up.numbers, {});
        wanted = linear(precise, Form::plain, f, between.y, down.numbers, added_rows);
        return wanted.y;
      },
      [&](const Numbers& x, const Numbers& dy, const auto& given) {
        const auto last = linear_backward(precise, Form::plain, f, between.y, down.numbers, wanted, dy);
        const auto first = linear_backward(precise, p.form, f, x, up.numbers, between, last.x);
        compare_gradients("up", precise, first.weights, given.up);
        compare_gradients("down", precise, last.weights, given.down);
        return first.x;
      });
}

/// Runs the cases of the machines that BackendOf<machine> names.
template <template <Machine> class BackendOf>
void run_linears(const std::vector<Machine>& machines, bool complete = true) {
  run_all("linear", linear_cases(machines), isa, complete, [&](const Case& c, Random& random) {
    const auto run = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
      constexpr Program p = programs[i];
      using B = typename BackendOf<p.machine>::type;
      if constexpr (!std::is_void_v<B>) {
        if (!fits(p, c.row)) return false;
        if constexpr (p.block == Block::linear)
          run_linear<B, p>(c, random);
        else
          run_feed_forward<B, p>(c, random);
        return true;
      }
      return false;
    };
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      EXPECT_TRUE((run(std::integral_constant<std::size_t, i>()) || ...));
    }
    (std::make_index_sequence<std::size(programs)>());
  });
}
}  // namespace blocks
