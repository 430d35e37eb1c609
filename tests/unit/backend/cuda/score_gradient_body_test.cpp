// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/score_gradient_body.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/relative_bias.hpp>

#include "gpu_model/backward_model.hpp"
#include "gpu_model/faulty_machine.hpp"
#include "score_gradient_case.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using support::gpu::BackwardModel;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;

/// A user's nine numbers, which two launches sum.
template <class X = float> struct Nine {
  X bend, of[8];
  template <class S> auto operator()(S s, Index, Index h, Index q, Index k) const {
    return s * 0.5f + bend * mha::tanh(s) - of[(q + h + 2 * k) % 8] * 0.25f;
  }
};
using Learnt = mha::Chain<mha::RelativeBias, Nine<>>;
Learnt learnt(int heads) {
  return {mha::RelativeBias(std::vector<float>(static_cast<std::size_t>(4 * heads), 0.25f), {4, 3, true}),
          {0.75f, {0.5f, 1, -1, 0.25f, 0, 2, -0.5f, 0.125f}}};
}

/// The gradients of a bias that repeats these axes, of a table by distance and of nine numbers, in units of the bound.
template <class T, class E>
double error(const BackwardCase<T>& c, const support::ScoreGradients<E>& found,
             const support::ScoreGradients<double>& expected) {
  const double least = support::gradient_scale(c);
  const double of_bias = support::relative_error(found.bias, expected.bias, least),
               of_numbers = support::relative_error(found.numbers, expected.numbers, least);
  return (of_bias <= of_numbers ? of_numbers : of_bias) / support::gradient_bound<T>;
}
template <class T, class... Extra>
void check(const std::string& name, const BackwardSizes& n, const std::vector<int>& repeats, const Extra&... extra) {
  const BackwardCase<T> c(name, n);
  for (const int axes : repeats) {
    const auto bias = support::repeated_bias<T>(name, n, axes);
    support::SimulatedCuda::state.counted = {};
    const auto found = support::score_gradients<BackwardModel<>, mha::Accumulator<T>>(c, bias, learnt(n.heads),
                                                                                      mha::Causal{}, extra...);
    EXPECT_EQ(support::SimulatedCuda::state.counted.bank_conflicts, 0) << name;
    const auto expected = support::score_gradients<mha::Reference, double>(c.template as<double>(), bias,
                                                                           learnt(n.heads), mha::Causal{}, extra...);
    EXPECT_LE(error(c, found, expected), 1) << name << ", axes " << axes;
  }
}

TEST(ScoreGradientBody, TakesTailsOfQueriesAndKeys) {
  for (const auto& [queries, keys] : std::vector<std::pair<int, int>>{{1, 1}, {1, 65}, {17, 31}, {65, 33}, {64, 64}}) {
    const std::string name = "score gradient " + std::to_string(queries) + " x " + std::to_string(keys);
    check<float>(name, {1, queries, keys, 2, 1, 5, 7}, {0, 7, 8});
    check<double>(name, {1, queries, keys, 1, 1, 5, 7}, {0, 12});
  }
}

TEST(ScoreGradientBody, TakesAnyHeadSizesAndAlignedRows) {
  check<float>("score gradient of 40 and 72", {2, 20, 33, 2, 1, 40, 72}, {0});
  check<float>("score gradient of 33 and 1", {1, 20, 33, 1, 1, 33, 1}, {4});
  check<mha::half>("score gradient in half", {1, 20, 33, 2, 2, 40, 36}, {1});
}

TEST(ScoreGradientBody, DropsWhatForwardHasDropped) {
  check<float>("score gradient dropout", {2, 20, 33, 2, 1, 8, 8}, {1}, mha::Dropout{0.3f}, mha::DropoutSeed{7});
}

/// A table that a pair adds to twice.
struct Own {
  float of[7];
  std::span<float> numbers() { return of; }
  std::span<const float> numbers() const { return of; }
  static std::size_t place(Index h, Index q, Index k) { return static_cast<std::size_t>(q + h + 2 * k) % 6; }
  template <class S> S operator()(S s, Index, Index h, Index q, Index k) const {
    return s * 0.5f + mha::tanh(s) * (of[place(h, q, k)] + 0.5f * of[6]);
  }
  template <class G, class S> void accumulate(G gradient, S dt, S s, Index, Index h, Index q, Index k) const {
    gradient[place(h, q, k)] += dt * mha::tanh(s);
    gradient[6] += 0.5f * dt * mha::tanh(s);
  }
};
const Own own{{0.5f, 1, -1, 0.25f, 0, 2, -0.5f}};

template <class T, class... Extra>
void check_own(const std::string& name, const BackwardSizes& n, const Extra&... extra) {
  const BackwardCase<T> c(name, n);
  support::SimulatedCuda::state.counted = {};
  const auto found = support::score_gradient<BackwardModel<>>(c, own, mha::Causal{}, extra...);
  EXPECT_EQ(support::SimulatedCuda::state.counted.bank_conflicts, 0) << name;
  const auto expected = support::score_gradient<mha::Reference>(c.template as<double>(), own, mha::Causal{}, extra...);
  EXPECT_LE(support::relative_error(found, expected, support::gradient_scale(c)) / support::gradient_bound<T>, 1)
      << name;
}

TEST(ScoreGradientBody, CallsAccumulateForEachPair) {
  for (const auto& [queries, keys] : std::vector<std::pair<int, int>>{{1, 1}, {1, 65}, {17, 31}, {65, 33}, {64, 64}}) {
    check_own<float>("own numbers", {1, queries, keys, 2, 1, 5, 7});
    check_own<double>("own numbers", {1, queries, keys, 1, 1, 5, 7});
  }
  check_own<mha::half>("own numbers in half", {2, 70, 33, 2, 2, 40, 36});
  check_own<float>("own numbers, dropout", {2, 20, 33, 2, 1, 8, 8}, mha::Dropout{0.3f}, mha::DropoutSeed{7});
}

TEST(ScoreGradientBody, ChecksOfAccumulateNoticeFlaws) {
  const BackwardCase<float> c("own numbers, flaws", {1, 65, 70, 1, 1, 40, 36});
  const auto expected = support::score_gradient<mha::Reference>(c.as<double>(), own, mha::Causal{});
  const auto right = [&] {
    const auto found = support::score_gradient<BackwardModel<FaultyMachine>>(c, own, mha::Causal{});
    return support::relative_error(found, expected, support::gradient_scale(c)) <= support::gradient_bound<float>;
  };
  FaultyMachine::plant({Flaw::none});
  ASSERT_TRUE(right());
  const auto missed =
      support::gpu::unnoticed(right, {{Flaw::no_sync}, {Flaw::no_wait}, {Flaw::no_commit, 0}, {Flaw::no_zero_fill}});
  EXPECT_LE(missed.size(), 1u) << "all but a block's last sync, which nothing follows: " << missed.front();
}

/// The flaws of a machine are noticed where rows are copied, and where they are not.
TEST(ScoreGradientBody, ChecksOfThisFileNoticeFlaws) {
  for (const int dim : {40, 41}) {
    const BackwardSizes n{1, 65, 70, 1, 1, dim, 36};
    const BackwardCase<float> c("score gradient flaws", n);
    const auto bias = support::repeated_bias<float>("score gradient flaws", n, 4);  // which queries share
    const auto expected =
        support::score_gradients<mha::Reference, double>(c.as<double>(), bias, learnt(1), mha::Causal{});
    const auto right = [&] {
      return error(c, support::score_gradients<BackwardModel<FaultyMachine>, float>(c, bias, learnt(1), mha::Causal{}),
                   expected) <= 1;
    };
    FaultyMachine::plant({Flaw::none});
    ASSERT_TRUE(right());
    auto missed = support::gpu::unnoticed(right, {{Flaw::no_sync, 1}, {Flaw::no_shuffle}});
    EXPECT_EQ(missed, std::vector<std::string>{});
    if (dim != 40) continue;
    missed =
        support::gpu::unnoticed(right, {{Flaw::no_sync}, {Flaw::no_wait}, {Flaw::no_commit, 0}, {Flaw::no_zero_fill}});
    EXPECT_EQ(missed, std::vector<std::string>{});
  }
}

}  // namespace
