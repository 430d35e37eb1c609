// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/pair_score_gradient.hpp>
#include <mha/core/math.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score_gradient.hpp>

namespace {

using mha::Index;

/// Ten members, more than a dual number takes at once: t = s + Σ m[i]² (i + 1).
template <class X> struct Squares {
  X m[10];
  template <class T> auto operator()(T s, Index, Index, Index, Index) const {
    auto t = m[0] * m[0] + s;
    for (int i = 1; i < 10; ++i) t = t + m[i] * m[i] * float(i + 1);
    return t;
  }
};

struct Square {
  template <class T> T operator()(T s, Index, Index, Index, Index) const { return s * s; }
};

/// t = s · n[k].
struct PerKey {
  double n[3];
  std::span<double> numbers() { return n; }
  std::span<const double> numbers() const { return n; }
  template <class T> T operator()(T s, Index, Index, Index, Index k) const { return s * n[k]; }
  template <class G, class T> void accumulate(G gradient, T dt, T s, Index, Index, Index, Index k) const {
    gradient[static_cast<std::size_t>(k)] += double(dt) * double(s);
  }
};

TEST(PairScoreGradient, AddsEveryMembersOwn) {
  Squares<double> score{};
  for (int i = 0; i < 10; ++i) score.m[i] = 0.5 + i;
  using Wanted = mha::detail::WantedScoreGradients<false, true>;
  std::vector<double> slots(10, 1.);
  const mha::ScoreGradientsTo<double> to{};
  mha::detail::add_score_gradients<Wanted>(to, score, slots.data(), 0, 0, 0, 0, 0.25, 3.);
  for (int i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(slots[static_cast<std::size_t>(i)], 1 + 3 * 2 * (0.5 + i) * (i + 1));
}

TEST(PairScoreGradient, GoesThroughTheScoresBehind) {
  // t = (s · n[k] + bias)² by Square, of the pair (q 1, k 2).
  mha::Tensor<double, 2> bias(2, 3);
  bias(1, 2) = 0.5;
  using Bias = mha::AdditiveBias<double>;
  const mha::Chain<mha::Chain<PerKey, Bias>, Square> score{{PerKey{{2, 3, 4}}, Bias(bias)}, {}};
  using Wanted = mha::detail::WantedScoreGradients<true, true>;
  std::vector<double> slots(3, 0.), sums(6, 0.);
  mha::ScoreGradientsTo<double> to{};
  to.tables[0].sums = sums.data();
  to.tables[0].stride[2] = 3;
  to.tables[0].stride[3] = 1;
  const double s = 0.75, before = s * 4 + 0.5;
  mha::detail::add_score_gradients<Wanted>(to, score, slots.data(), 0, 0, 1, 2, s, 3.);
  EXPECT_DOUBLE_EQ(sums[5], 3 * 2 * before);
  EXPECT_DOUBLE_EQ(slots[2], 3 * 2 * before * s);
  EXPECT_EQ(slots[0], 0);
  EXPECT_EQ(sums[2], 0);
}

TEST(PairScoreGradient, LeavesWhatIsNotWanted) {
  const Squares<double> score{};
  mha::detail::add_score_gradients<mha::NoScoreGradients>(mha::ScoreGradientsTo<double>{}, score, nullptr, 0, 0, 0, 0,
                                                          0.25, 3.);
}

}  // namespace
