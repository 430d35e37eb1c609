// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/bias_gradient.hpp>
#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "score_gradient_case.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using support::message_of;
using One = mha::CpuWith<mha::Serial>;

TEST(BiasGradientTo, IsATableThatIsWrittenOrAddedTo) {
  mha::Tensor<float, 2> table(3, 5);
  const mha::BiasGradient written(table), added(mha::add_to(table));
  EXPECT_FALSE(written.adds);
  EXPECT_TRUE(added.adds);
  for (const auto& given : {written, added}) {
    EXPECT_EQ(given.to.data, table.data());
    EXPECT_EQ(given.to.extent[0], 1);
    EXPECT_EQ(given.to.extent[2], 3);
    EXPECT_EQ(given.to.extent[3], 5);
  }
}

/// Added to a table of E is what stands there + the gradient, rounded once.
template <class B, class T, class E> void expect_added(const BackwardSizes& n, int axes) {
  using A = mha::Accumulator<T>;
  SCOPED_TRACE(axes);
  const BackwardCase<T> c("added", n);
  const auto bias = support::repeated_bias<E>("added", n, axes);
  const mha::AdditiveBias policy(bias);
  mha::AttentionTape<T, B> tape;
  const auto out = mha::attention<B>(c.q, c.k, c.v, policy, mha::Causal{}, mha::record(tape));
  mha::Tensor<A, 4> gradient(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
  support::poison_all(gradient);
  const auto into = [&](const auto& to) {
    mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, policy, mha::Causal{}, to);
  };
  into(mha::BiasGradient(gradient));
  mha::Tensor<E, 4> sum = bias, expected = bias;
  for (std::size_t i = 0; i < bias.size(); ++i)
    expected.data()[i] = static_cast<E>(static_cast<A>(bias.data()[i]) + gradient.data()[i]);
  into(mha::BiasGradient(mha::add_to(sum)));
  EXPECT_EQ(support::differing(sum, expected), 0u);
  // A row's gradients sum to 0 over its keys, but for rounding.
  if (bias.extent(3) > 1) {
    EXPECT_GT(support::differing(sum, bias), sum.size() / 3) << "hidden pairs add nothing";
  }
}

TEST(BiasGradientTo, AddsToWhatTheTableHolds) {
  for (int axes = 0; axes < 16; ++axes) {
    expect_added<mha::Reference, double, double>({}, axes);
    expect_added<One, float, float>({2, 35, 101, 4, 2, 11, 5}, axes);
  }
  for (const int axes : {0, 1, 3, 12}) {
    expect_added<mha::Cpu, mha::bfloat16, mha::bfloat16>({2, 35, 67, 4, 2, 8, 8}, axes);
    expect_added<mha::Cpu, mha::bfloat16, float>({2, 35, 67, 4, 2, 8, 8}, axes);
  }
}

TEST(BiasGradientTo, AddsToTheElementsOfTheTableAlone) {
  const BackwardSizes n{1, 5, 7, 2, 1, 4, 4};
  const BackwardCase<float> c("added strides", n);
  const mha::Tensor<float, 3> bias(2, 5, 7);
  std::vector<float> memory(2 * 2 * 5 * 7, std::numeric_limits<float>::quiet_NaN());
  const mha::TensorView<float, 3> apart{memory.data(), {2, 5, 7}, {2 * 5 * 7, 2 * 7, 2}};
  for (std::size_t i = 0; i < memory.size(); i += 2) memory[i] = 1;
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias(bias), mha::record(tape));
  for (int time = 0; time < 2; ++time)
    mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias(bias),
                                 mha::BiasGradient(mha::add_to(apart)));
  mha::Tensor<float, 3> once(2, 5, 7);
  mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias(bias), mha::BiasGradient(once));
  for (Index h = 0; h < 2; ++h)
    for (Index q = 0; q < 5; ++q)
      for (Index k = 0; k < 7; ++k) EXPECT_EQ(apart(h, q, k), 1 + once(h, q, k) + once(h, q, k));
  for (std::size_t i = 1; i < memory.size(); i += 2) EXPECT_TRUE(std::isnan(memory[i])) << "between the elements";
}

TEST(BiasGradientTo, IsRefusedAlikeWhereItIsAddedTo) {
  const BackwardCase<float> c("added refused", {1, 5, 7, 2, 1, 4, 4});
  mha::Tensor<float, 3> bias(2, 5, 7), other(2, 5, 6);
  mha::AttentionTape<float> tape;
  const mha::AdditiveBias policy(bias);
  const auto out = mha::attention(c.q, c.k, c.v, policy, mha::record(tape));
  const auto refused = [&](const auto& to) {
    return message_of([&] {
      mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, policy, mha::BiasGradient(mha::add_to(to)));
    });
  };
  EXPECT_EQ(refused(other.view()), "attention_backward: AdditiveBias has keys 7 but BiasGradient has keys 6");
  EXPECT_EQ(refused(bias.view()), "attention_backward: BiasGradient overlaps AdditiveBias, expected separate memory");
}

}  // namespace
