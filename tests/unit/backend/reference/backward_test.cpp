// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

namespace {

using mha::Index;

// One query, two keys, head size 1: p = 1/4 and 3/4, out = 0·1/4 + 1·3/4.
TEST(ReferenceBackward, FollowsTheFormula) {
  mha::Tensor<double, 2> q(1, 1), k(2, 1), v(2, 1), d_out(1, 1);
  q(0, 0) = 1;
  k(1, 0) = std::log(3.0);
  v(1, 0) = 1;
  d_out(0, 0) = 2;
  mha::AttentionTape<double, mha::Reference> tape;
  const auto out = mha::attention<mha::Reference>(q, k, v, mha::record(tape));
  const auto g = mha::attention_backward(d_out, q, k, v, out, tape);
  EXPECT_NEAR(g.value(0, 0), 0.5, 1e-15);
  EXPECT_NEAR(g.value(1, 0), 1.5, 1e-15);
  // ds = p (d_out·v − d_out·out): 1/4 (0 − 3/2) and 3/4 (2 − 3/2).
  EXPECT_NEAR(g.key(0, 0), -0.375, 1e-15);
  EXPECT_NEAR(g.key(1, 0), 0.375, 1e-15);
  EXPECT_NEAR(g.query(0, 0), 0.375 * std::log(3.0), 1e-15);
}

TEST(ReferenceBackward, ALargeSinkTakesAllOfTheGradient) {
  mha::Tensor<double, 2> q(1, 1), k(2, 1), v(2, 1), d_out(1, 1);
  v(0, 0) = v(1, 0) = d_out(0, 0) = 1;
  mha::AttentionTape<double, mha::Reference> tape;
  for (const float logit : {-3e4f, 3e4f}) {
    const mha::Sink sink({logit});
    const auto out = mha::attention<mha::Reference>(q, k, v, sink, mha::record(tape));
    const auto g = mha::attention_backward(d_out, q, k, v, out, tape, sink);
    EXPECT_EQ(g.sink(0), 0);
    EXPECT_EQ(g.value(0, 0), logit < 0 ? 0.5 : 0.);
  }
}

TEST(ReferenceBackward, SumsInADifferentiableScalar) {
  using Dual = mha::Dual<double>;
  mha::Tensor<Dual, 2> q(1, 1), k(2, 1), v(2, 1), d_out(1, 1);
  q(0, 0) = Dual::variable(0.5);
  k(1, 0) = v(1, 0) = d_out(0, 0) = 1;
  mha::AttentionTape<Dual, mha::Reference> tape;
  const auto out = mha::attention<mha::Reference>(q, k, v, mha::record(tape));
  const auto g = mha::attention_backward(d_out, q, k, v, out, tape);
  static_cast<void>(mha::attention_backward(d_out, q, k, v, out, tape, mha::SoftCap{2.f}));  // scores compile too
  // out = σ(q), so that dq = σ(1 − σ) and its derivative σ(1 − σ)(1 − 2σ).
  const double s = 1 / (1 + std::exp(-0.5));
  EXPECT_NEAR(g.query(0, 0).value, s * (1 - s), 1e-15);
  EXPECT_NEAR(g.query(0, 0).derivative[0], s * (1 - s) * (1 - 2 * s), 1e-15);
}

}  // namespace
