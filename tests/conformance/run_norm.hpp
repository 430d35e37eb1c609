// SPDX-License-Identifier: Apache-2.0
// One case of a norm on the machine that it names, against the loops of block_oracle.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "run_block.hpp"

namespace blocks {

template <class B, NormProgram program> void run_norm(const Case& c, Random& random) {
  using T = typename ScalarOf<program.storage>::type;
  using Norm = std::conditional_t<program.kind == NormKind::layer, mha::LayerNorm<T, B>, mha::RmsNorm<T, B>>;
  const Index batch = c.number(norm_batch), length = c.number(norm_length), E = c.number(blocks::width);
  const bool with_bias = c.row[norm_bias] == 1, centred = c.row[zero_centered] == 1;
  mha::NormConfig config{.width = E, .bias = with_bias, .zero_centered = centred};
  if (c.row[eps] > 0) config.eps = c.row[eps] == 1 ? 0 : 0.25;
  Norm block(config);
  NormNumbers numbers{program.kind, *block.config().eps, std::vector<double>(std::size_t(E), 1),
                      std::vector<double>(std::size_t(E), 0)};
  const auto how = c.at<NormWeights>(norm_weights);
  std::vector<T> own(4 * std::size_t(E));
  support::poison_all(own);
  /// Draws both into memory in which elements are so far apart.
  const auto drawn = [&](auto* memory, std::ptrdiff_t step) {
    using W = std::remove_pointer_t<decltype(memory)>;
    const mha::TensorView<W, 1> weight{memory, {E}, {step}}, bias_row{memory + step * E, {E}, {step}};
    for (Index j = 0; j < E; ++j) {
      const auto e = static_cast<std::size_t>(j);
      numbers.weight[e] = support::to_double(weight(j) = Random::rounded<W>(random.normal())) + (centred ? 1 : 0);
      if (with_bias) numbers.bias[e] = support::to_double(bias_row(j) = Random::rounded<W>(random.normal()));
    }
    mha::BorrowedNorm<W> borrowed{.weight = mha::TensorView<const W, 1>(weight)};
    if (with_bias) borrowed.bias = mha::TensorView<const W, 1>(bias_row);
    return borrowed;
  };
  const auto narrow = [&]<class W>(const W&) {
    std::vector<W> memory(2 * std::size_t(E));
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) block.borrow(drawn(memory.data(), 1));
  };
  if (how == NormWeights::half) narrow(mha::half());
  if (how == NormWeights::bfloat16) narrow(mha::bfloat16());
  if (how == NormWeights::strided) block.borrow(drawn(own.data(), 2));
  if (how == NormWeights::updated) {
    const auto from = drawn(own.data(), 1);
    static_cast<void>(from);
    block.update([&](const auto& p) { std::copy_n(own.begin(), p.flat().size(), p.flat().begin()); });
  }

  const auto lying = [&](int n) { return support::lies[(c.row[norm_rows] + n) % 5]; };
  const auto to = c.at<ResultKind>(norm_result);
  const auto summed = c.at<SumKind>(sum);
  Carried<B, T> x(lying(0), batch, length, E), r(lying(2), batch, length, E), own_y(lie_of(to), batch, length, E),
      own_sum(lying(3), batch, length, E);
  const double at = c.number(level);
  for (auto* drawn_rows : {&x, &r})
    drawn_rows->each(
        [&](Index b, Index l, Index e) { drawn_rows->view(b, l, e) = Random::rounded<T>(at + random.normal()); });
  const bool in_x = to == ResultKind::x, over = c.at<ResidualKind>(norm_residual) == ResidualKind::result;
  Carried<B, T>&y = in_x ? x : own_y, &added_rows = over ? y : r;
  Carried<B, T>& s = summed == SumKind::x ? x : summed == SumKind::residual ? added_rows : own_sum;
  if (over && !in_x) own_y.copy(r.read());
  for (auto* sent : {&x, &r, &own_y, &own_sum}) sent->send();
  const Precision p = precision<B, T>();
  const NormAnswer wanted =
      norm(p, numbers, exact(x.view), program.added == Added::none ? Numbers() : exact(added_rows.view));

  static typename B::Workspace workspace;
  poison_workspace<B>(workspace);
  const auto call_with = [&](auto&&... more) {
    const auto x_there = x.there_to_read();
    if constexpr (program.returned) {
      compare_tensor("the result", wanted.y, support::Transport<B>::fetched(block(x_there, more..., workspace)));
    } else {
      block(x_there, more..., mha::into(y.there()), workspace);
      y.fetch();
      compare_rows("the result", wanted.y, y);
    }
  };
  const auto call = [&](auto&... tape) {
    const auto r_there = added_rows.there_to_read();
    if constexpr (program.added == Added::none) {
      call_with(tape...);
    } else if constexpr (program.added == Added::residual) {
      call_with(tape..., mha::residual(r_there));
    } else {
      call_with(mha::residual(r_there), tape..., mha::sum_into(s.there()));
      s.fetch();
      compare_rows("the sum", wanted.sum, s);
    }
  };
  if constexpr (program.pass == NormPass::forward) {
    call();
  } else {
    auto tape = block.tape();
    call(tape);
    Rows<T> dy(lying(1), batch, length, E), dx(lying(4), batch, length, E);
    dy.draw(random);
    dx.draw(random);
    for (Index e = 0; e < E; ++e) dy.view(batch - 1, length - 1, e) = T(mha::Accumulator<T>(0));  // as of padding
    auto g = block.gradients();
    for (auto& number : g.flat()) number = mha::Accumulator<T>(0.25);
    NormGradients expected = norm_backward(p, numbers, wanted.sum, exact(dy.view));
    const Numbers held = exact(dx.view);
    poison_workspace<B>(workspace);
    if constexpr (program.pass == NormPass::add_to) {
      block.backward(dy.read(), tape, g, mha::add_to(dx.view), workspace);
      for (std::size_t i = 0; i < held.value.size(); ++i) {
        expected.x.value[i] += held.value[i];
        expected.x.error[i] += (2 * p.sums + p.storage) * (std::abs(held.value[i]) + std::abs(expected.x.value[i]));
      }
      compare_rows("the gradient of x", expected.x, dx);
    } else if constexpr (program.returned) {
      compare_tensor("the gradient of x", expected.x, block.backward(dy.read(), tape, g, workspace));
    } else {
      block.backward(dy.read(), tape, g, mha::into(dx.view), workspace);
      compare_rows("the gradient of x", expected.x, dx);
    }
    compare_added("the gradient of the weight", p, expected.weight, g.weight);
    compare_added("the gradient of the bias", p, with_bias ? expected.bias : Numbers(), g.bias);
  }
}

/// Runs the cases of the machines that BackendOf<machine> names.
template <template <Machine> class BackendOf>
void run_norms(const std::vector<Machine>& machines, bool complete = true) {
  run_all("norm", norm_cases(machines), static_cast<Factor>(norm_isa), complete, [&](const Case& c, Random& random) {
    const auto run = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
      constexpr NormProgram p = norm_programs[i];
      using B = typename BackendOf<p.machine>::type;
      if constexpr (!std::is_void_v<B>) {
        if (fits(p, c.row)) run_norm<B, p>(c, random);
        return fits(p, c.row);
      }
      return false;
    };
    [&]<std::size_t... i>(std::index_sequence<i...>) {
      EXPECT_TRUE((run(std::integral_constant<std::size_t, i>()) || ...));
    }
    (std::make_index_sequence<std::size(norm_programs)>());
  });
}

}  // namespace blocks
