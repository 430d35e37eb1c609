// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/score_gradient.hpp>
#include <mha/core/view.hpp>
#include <mha/policy/score/additive_bias.hpp>

#include "levels.hpp"

namespace {

using mha::Index;
namespace simd = mha::detail::simd;
using Both = mha::detail::WantedScoreGradients<true, true>;

/// Σ_j c_j s^(j / 4) · (1 + b + 10 h + 100 q + k) for N numbers c: more than fit one pass.
template <int N> struct Series {
  template <class T = double> struct Of {
    T c[std::size_t{N}];
    template <class S> auto operator()(S s, Index b, Index h, Index q, Index k) const {
      decltype(s * c[0]) sum = s;
      for (int j = 0; j < N; ++j)
        sum = sum + c[j] * mha::exp(s * (0.25 * j)) * (0.01 * static_cast<double>(1 + b + 10 * h + q + 2 * k));
      return sum;
    }
  };
};

template <int N> void expect_all_passes() {
  using Score = typename Series<N>::template Of<>;
  Score score{};
  for (int j = 0; j < N; ++j) score.c[j] = 0.1 * (j - 4);
  const double element = 0.5;
  const mha::AdditiveBias<double> bias(mha::TensorView<const double, 4>{&element, {1, 1, 1, 1}, {}}, mha::Origins(0));
  const mha::Chain chain{bias, score};
  unit::for_each_level([&](auto isa) {
    const simd::AnyScoreGradient<double> gradient(Both{}, chain, decltype(isa)::level);
    ASSERT_EQ(gradient.slots(), N);
    ASSERT_EQ(gradient.tables(), 1);
    ASSERT_TRUE(gradient.evaluates());
    constexpr Index W = simd::Vector<double, decltype(isa)>::width, lanes = 2 * W, count = lanes - 1, keys = 3;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> dots(std::size_t{lanes * keys}), ds(dots.size()), table(dots.size() + 4, -1.);
    std::vector<double> slots(static_cast<std::size_t>(gradient.padded_slots()), 1.), expected(std::size_t{N}, 1.);
    std::vector<double> of_logit(dots.size()), of_bias(dots.size());
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < lanes; ++i) {
        const auto at = static_cast<std::size_t>(k * lanes + i);
        dots[at] = 0.02 * double(at);
        ds[at] = i < count ? 0.3 - 0.05 * double(at) : nan;
        if (at == 4) {  // hidden
          dots[at] = nan;
          ds[at] = 0;
        }
        if (i >= count || at == 4) continue;
        const double s = 0.5 * dots[at] + element, factor = 0.01 * double(1 + 2 + 30 + 4 + i + 2 * (7 + k));
        double slope = 1;
        for (int j = 0; j < N; ++j) {
          slope += score.c[j] * 0.25 * j * std::exp(0.25 * j * s) * factor;
          expected[static_cast<std::size_t>(j)] += ds[at] * std::exp(0.25 * j * s) * factor;
        }
        of_logit[at] = of_bias[at] = ds[at] * slope;
      }
    double* const tables[] = {table.data()};
    gradient.apply({2, 3, 4, count}, dots.data(), ds.data(), lanes, lanes, 0.5, 7, keys, true, slots.data(), tables, 4);
    for (std::size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(slots[j], expected[j], 1e-11) << j;
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(k * lanes + i);
        EXPECT_NEAR(ds[at], of_logit[at], 1e-12);
        EXPECT_NEAR(table[at + 4], of_bias[at], 1e-12);
      }
    EXPECT_EQ(table[3], -1);
  });
}

TEST(AnyScoreGradient, SumsManyNumbersInPasses) {
  expect_all_passes<1>();
  expect_all_passes<7>();
  expect_all_passes<9>();
  expect_all_passes<17>();
}

TEST(AnyScoreGradient, EvaluatesNothingOfABiasThatIsOnlyAdded) {
  const mha::AdditiveBias<double> bias;
  const simd::AnyScoreGradient<double> gradient(Both{}, bias, mha::current_isa());
  EXPECT_TRUE(gradient.exists());
  EXPECT_FALSE(gradient.evaluates());
  EXPECT_EQ(gradient.tables(), 1);
  EXPECT_FALSE(simd::AnyScoreGradient<double>(mha::NoScoreGradients{}, bias, mha::current_isa()).exists());
}

}  // namespace
