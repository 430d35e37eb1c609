// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/backward_kernels.hpp>

#include "levels.hpp"
#include "random.hpp"

namespace {

using mha::Index;
namespace simd = mha::detail::simd;
template <class A> constexpr A infinity = std::numeric_limits<A>::infinity();

template <class A> class BackwardKernels : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(BackwardKernels, Scalars, );

template <class A> std::vector<A> random_numbers(support::Random& random, Index n) {
  std::vector<A> x(static_cast<std::size_t>(n));
  random.fill(x);
  return x;
}

TYPED_TEST(BackwardKernels, WeightsAndTheirGradients) {
  using A = TypeParam;
  support::Random random("weights");
  unit::for_each_level([&](auto isa) {
    const auto kernels = simd::backward_kernels<A>(decltype(isa)::level, 100);
    const Index lanes = kernels.tile.lanes, n = 5;
    const std::vector<A> s0 = [&] {
      auto s = random_numbers<A>(random, n * lanes);
      s[7] = -infinity<A>;
      return s;
    }();
    auto dp0 = random_numbers<A>(random, n * lanes);
    dp0[7] = std::numeric_limits<A>::quiet_NaN();
    const auto derivative = random_numbers<A>(random, n * lanes), level = random_numbers<A>(random, lanes),
               delta = random_numbers<A>(random, lanes);
    auto log2_sum = random_numbers<A>(random, lanes);
    log2_sum[1] = infinity<A>;
    for (A& x : log2_sum) x += 8;
    for (const A* by : {static_cast<const A*>(nullptr), derivative.data()}) {
      auto s = s0, dp = dp0;
      kernels.weight_gradient(s.data(), dp.data(), by, n, lanes, lanes, {level.data(), log2_sum.data(), delta.data()},
                              A(0.5));
      for (std::size_t i = 0; i < s.size(); ++i) {
        const std::size_t lane = i % static_cast<std::size_t>(lanes);
        const double p = std::exp2(double((s0[i] - level[lane]) * A(0.5)) - double(log2_sum[lane]));
        const double slope = by != nullptr ? double(by[i]) : 1;
        const double expected = i == 7 ? 0 : p * (double(dp0[i]) - double(delta[lane])) * slope;
        const double bound = 8 * double(std::numeric_limits<A>::epsilon());
        EXPECT_NEAR(s[i], p, bound * p);
        EXPECT_NEAR(dp[i], expected, bound * std::abs(expected) + bound * p);
        if (lane == 1) {
          EXPECT_EQ(s[i], 0);
        }
      }
    }
  });
}

TYPED_TEST(BackwardKernels, WeightsThatAreDroppedAndTheirGradients) {
  using A = TypeParam;
  support::Random random("dropped weights");
  unit::for_each_level([&](auto isa) {
    const auto kernels = simd::backward_kernels<A>(decltype(isa)::level, 100);
    const Index lanes = kernels.tile.lanes, n = 11, first = 6, part = kernels.part;
    const mha::DropoutDraws draws = mha::detail::dropout_draws(0.4, mha::DropoutSeed{support::seed(), 9});
    simd::DroppingLanes of;
    for (Index i = 0; i < lanes; ++i) {
      of.position[i] = static_cast<std::uint32_t>(random.below(1000));
      of.row[i] = static_cast<std::uint32_t>(random.below(1000));
    }
    auto s0 = random_numbers<A>(random, n * lanes);
    s0[1] = -infinity<A>;
    const auto dp0 = random_numbers<A>(random, n * lanes), derivative = random_numbers<A>(random, n * lanes),
               level = random_numbers<A>(random, lanes), delta = random_numbers<A>(random, lanes),
               log2_sum = random_numbers<A>(random, lanes);
    const simd::BackwardRows<A> rows{level.data(), log2_sum.data(), delta.data()};
    for (const A* by : {static_cast<const A*>(nullptr), derivative.data()})
      for (const bool wants_ds : {true, false}) {
        auto plain = s0, s = s0, dp = dp0, expected = dp0;
        kernels.dropped_weight_gradient(s.data(), wants_ds ? dp.data() : nullptr, by, n, lanes, part, rows, A(0.5),
                                        first, of.of(draws));
        kernels.weight_gradient(plain.data(), nullptr, nullptr, n, lanes, part, rows, A(0.5));
        for (Index k = 0; k < n; ++k)
          for (Index i = 0; i < part; ++i) {
            const auto at = static_cast<std::size_t>(k * lanes + i), lane = static_cast<std::size_t>(i);
            const A f = static_cast<A>(draws.factor(of.row[i], static_cast<Index>(of.position[i]), first + k));
            plain[at] *= f;
            if (!wants_ds) continue;
            const A p =
                f > 0
                    ? plain[at] / f
                    : static_cast<A>(std::exp2((double(s0[at]) - double(level[lane])) * 0.5 - double(log2_sum[lane])));
            expected[at] = p * (dp0[at] * f - delta[lane]) * (by != nullptr ? by[at] : A(1));
          }
        for (std::size_t i = 0; i < s.size(); ++i) {
          ASSERT_EQ(s[i], plain[i]) << i;
          ASSERT_NEAR(dp[i], expected[i], 1e2 * double(std::numeric_limits<A>::epsilon()) * (1 + std::abs(expected[i])))
              << i;
        }
      }
  });
}

TYPED_TEST(BackwardKernels, OuterProductsAddInTheOrderOfTheQueries) {
  using A = TypeParam;
  support::Random random("outer");
  unit::for_each_level([&](auto isa) {
    const auto kernels = simd::backward_kernels<A>(decltype(isa)::level, 100);
    const Index lanes = kernels.tile.lanes, width = kernels.tile.width;
    for (const Index n : {1, 2, 9, 13})
      for (const Index queries : {Index{1}, lanes, lanes + 3})
        for (const Index dim : {width, 5 * width}) {
          const std::ptrdiff_t tile = std::ptrdiff_t{n} * lanes + 4;
          const auto s = random_numbers<A>(random, static_cast<Index>(2 * tile)),
                     x = random_numbers<A>(random, queries * dim), before = random_numbers<A>(random, n * dim);
          auto out = before, guarded = before;
          std::vector<A> visible(s.size(), A(1));
          const simd::OuterArgs<A> args{s.data(), lanes, tile, n, queries, x.data(), dim, dim, out.data(), dim};
          kernels.outer(args);
          auto other = args;
          other.out = guarded.data();
          kernels.guarded_outer(other, visible.data());
          for (Index k = 0; k < n; ++k)
            for (Index d = 0; d < dim; ++d) {
              double sum = double(before[static_cast<std::size_t>(k * dim + d)]), size = std::abs(sum);
              for (Index q = 0; q < queries; ++q) {
                const double term = double(s[static_cast<std::size_t>(q / lanes * tile + k * lanes + q % lanes)]) *
                                    double(x[static_cast<std::size_t>(q * dim + d)]);
                sum += term;
                size += std::abs(term);
              }
              const auto at = static_cast<std::size_t>(k * dim + d);
              EXPECT_NEAR(out[at], sum, double(std::numeric_limits<A>::epsilon()) * (queries + 1) * size);
              EXPECT_EQ(out[at], guarded[at]);
            }
          // Two calls, query after query, give the bits of one.
          if (queries <= lanes) continue;
          auto parts = before;
          simd::OuterArgs<A> first = args, second = args;
          first.out = second.out = parts.data();
          first.queries = lanes;
          second.queries = queries - lanes;
          second.s += tile;
          second.x += std::ptrdiff_t{lanes} * dim;
          kernels.outer(first);
          kernels.outer(second);
          EXPECT_EQ(parts, out);
        }
  });
}

TYPED_TEST(BackwardKernels, GuardedOuterProductsLeaveHiddenPairsOut) {
  using A = TypeParam;
  unit::for_each_level([&](auto isa) {
    const auto kernels = simd::backward_kernels<A>(decltype(isa)::level, 1);
    const Index lanes = kernels.tile.lanes, dim = kernels.tile.width;
    std::vector<A> s(static_cast<std::size_t>(lanes), A(0)), visible(s), x(static_cast<std::size_t>(2 * dim), A(2)),
        out(static_cast<std::size_t>(dim), A(1));
    s[0] = visible[0] = A(1);
    x[static_cast<std::size_t>(dim)] = std::numeric_limits<A>::quiet_NaN();  // of the second query, which is hidden
    kernels.guarded_outer({s.data(), lanes, 0, 1, 2, x.data(), dim, dim, out.data(), dim}, visible.data());
    for (const A y : out) EXPECT_EQ(y, 3);
  });
}

TYPED_TEST(BackwardKernels, AddsRows) {
  using A = TypeParam;
  support::Random random("rows");
  unit::for_each_level([&](auto isa) {
    const auto kernels = simd::backward_kernels<A>(decltype(isa)::level, 1);
    const auto a = random_numbers<A>(random, 3 * kernels.tile.width),
               b = random_numbers<A>(random, 3 * kernels.tile.width);
    auto sum = b;
    kernels.add_rows(a.data(), static_cast<std::ptrdiff_t>(a.size()), sum.data());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(sum[i], a[i] + b[i]);
  });
}

}  // namespace
