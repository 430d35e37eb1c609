// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"

namespace {

using mha::Index;
using mha::Reference;

TEST(AttentionTape, HoldsLevelAndSumOfEveryRow) {
  const support::BackwardCase<double> c("tape", {.queries = 5, .keys = 3});
  mha::AttentionTape<double, Reference> tape;
  EXPECT_FALSE(tape.recorded());
  mha::Tensor<double, 3> lse(2, 4, 5);
  const auto plain = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{});
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{}, mha::record(tape), mha::LogSumExp(lse));
  EXPECT_TRUE(tape.recorded());
  EXPECT_EQ(support::differing(plain, out), 0u);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 5; ++i) {
        const Index row = (b * 4 + h) * 5 + i;
        const double level = tape.level()[row], sum = tape.sum()[row];
        if (i < 2) {  // these see no key
          EXPECT_EQ(level, -HUGE_VAL);
          EXPECT_EQ(sum, 0);
        } else {
          EXPECT_GE(sum, 1);
          EXPECT_NEAR(level + std::log(sum), lse(b, h, i), 1e-13);
        }
      }
}

TEST(AttentionTape, KeepsItsMemoryAndForgetsTheCallBefore) {
  const support::BackwardCase<float> large("large", {.queries = 9}), small("small", {});
  mha::AttentionTape<float, Reference> tape;
  static_cast<void>(mha::attention<Reference>(large.q, large.k, large.v, mha::record(tape)));
  const float* const memory = tape.level();
  static_cast<void>(mha::attention<Reference>(small.q, small.k, small.v, mha::record(tape)));
  EXPECT_EQ(tape.level(), memory);
  const mha::AttentionTape<float, Reference> moved = std::move(tape);
  EXPECT_TRUE(moved.recorded());
  EXPECT_EQ(moved.level(), memory);
}

}  // namespace
