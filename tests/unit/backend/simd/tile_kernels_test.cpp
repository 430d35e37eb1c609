// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/tile_kernels.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class TileKernels : public testing::Test {
 protected:
  /// f(kernels) for the narrow and the wide tile of every level.
  template <class F> static void for_each_tile(F&& f) {
    unit::for_each_level([&](auto isa) {
      for (const Index queries : {1, 1000}) {
        const auto kernels = simd::tile_kernels<T>(isa.level, queries);
        SCOPED_TRACE(std::to_string(kernels.lanes) + " lanes");
        f(kernels);
      }
    });
  }
};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(TileKernels, Scalars);

std::size_t count(Index rows, Index lanes) { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(lanes); }

TYPED_TEST(TileKernels, FewQueriesTakeOneRegisterWhereAnotherShapePays) {
  unit::for_each_level([&]<class Isa>(Isa) {
    constexpr Index width = simd::Vector<TypeParam, Isa>::width;
    EXPECT_EQ(simd::tile_kernels<TypeParam>(Isa::level, width).lanes, Isa::minimal ? 2 * width : width);
    EXPECT_GT(simd::tile_kernels<TypeParam>(Isa::level, width + 1).lanes, width);
  });
}

TYPED_TEST(TileKernels, SoftmaxStepsFollowTheRecurrence) {
  using T = TypeParam;
  constexpr double hidden = -std::numeric_limits<double>::infinity();
  support::Random random("softmax steps");
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes;
    const T slope = static_cast<T>(0.3 * std::numbers::log2e);
    std::vector<T> max(count(1, lanes), -std::numeric_limits<T>::infinity()), sum(count(1, lanes), T(0)),
        rescale(count(1, lanes));
    std::vector<double> reference_max(count(1, lanes), hidden), reference_sum(count(1, lanes), 0);
    for (const Index n : {1, 5, 40}) {
      std::vector<T> s(count(n, lanes));
      for (T& x : s) x = random.chance(0.3) ? -std::numeric_limits<T>::infinity() : static_cast<T>(4 * random.normal());
      const std::vector<T> logits = s;
      const std::vector<double> before = reference_max;
      kernels.softmax(s.data(), n, slope, max.data(), sum.data(), rescale.data());
      for (Index lane = 0; lane < lanes; ++lane) {
        const auto at = [&](Index k) { return static_cast<std::size_t>(k * lanes + lane); };
        const auto j = static_cast<std::size_t>(lane);
        double highest = before[j];
        for (Index k = 0; k < n; ++k) highest = std::max(highest, static_cast<double>(logits[at(k)]));
        const double factor = before[j] == hidden ? 0 : std::exp(0.3 * (before[j] - highest));
        double total = reference_sum[j] * factor;
        for (Index k = 0; k < n; ++k) {
          const double w = logits[at(k)] == -std::numeric_limits<T>::infinity()
                               ? 0
                               : std::exp(0.3 * (static_cast<double>(logits[at(k)]) - highest));
          EXPECT_NEAR(static_cast<double>(s[at(k)]), w, 40 * support::unit_roundoff<T>());
          EXPECT_EQ(support::bits(s[at(k)]) == 0, w == 0);
          total += w;
        }
        EXPECT_EQ(static_cast<double>(max[j]), highest);
        EXPECT_NEAR(static_cast<double>(rescale[j]), before[j] == hidden && highest == hidden ? 0 : factor,
                    40 * support::unit_roundoff<T>());
        EXPECT_NEAR(static_cast<double>(sum[j]), total, 100 * support::unit_roundoff<T>() * (total + 1));
        reference_max[j] = highest;
        reference_sum[j] = total;
      }
    }
  });
}

TYPED_TEST(TileKernels, SoftmaxOfHiddenKeysLeavesTheStateAlone) {
  using T = TypeParam;
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes;
    std::vector<T> s(count(3, lanes), -std::numeric_limits<T>::infinity()), max(count(1, lanes), T(1.5)),
        sum(count(1, lanes), T(2.25)), rescale(count(1, lanes));
    max[0] = -std::numeric_limits<T>::infinity();
    sum[0] = T(0);
    kernels.softmax(s.data(), 3, T(1), max.data(), sum.data(), rescale.data());
    EXPECT_EQ(max[0], -std::numeric_limits<T>::infinity());
    EXPECT_EQ(sum[0], T(0));
    for (std::size_t j = 1; j < max.size(); ++j) {
      EXPECT_EQ(max[j], T(1.5));
      EXPECT_EQ(sum[j], T(2.25));
      EXPECT_EQ(rescale[j], T(1)) << "a rescale that changes bits";
    }
    for (const T x : s) EXPECT_EQ(support::bits(x), 0u);
  });
}

TYPED_TEST(TileKernels, SoftmaxKeepsNaN) {
  using T = TypeParam;
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes;
    std::vector<T> s(count(3, lanes), T(1)), max(count(1, lanes), -std::numeric_limits<T>::infinity()),
        sum(count(1, lanes), T(0)), rescale(count(1, lanes));
    s[static_cast<std::size_t>(lanes) + 1] = std::numeric_limits<T>::quiet_NaN();
    kernels.softmax(s.data(), 3, T(1), max.data(), sum.data(), rescale.data());
    for (std::size_t j = 0; j < sum.size(); ++j) EXPECT_EQ(std::isnan(sum[j]), j == 1) << j;
  });
}

TYPED_TEST(TileKernels, ValuesAreWeightedAndAddedToTheRescaledOutput) {
  using T = TypeParam;
  support::Random random("values");
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes;
    for (const Index dim : {1, 3, 8, 17})
      for (const Index n : {1, 2, 31}) {
        const std::ptrdiff_t stride = dim + 2;
        std::vector<T> values(static_cast<std::size_t>(n * stride)), p(count(n, lanes)), visible(count(n, lanes), T(1)),
            rescale(count(1, lanes)), out(count(dim, lanes));
        for (auto* x : {&values, &p, &rescale, &out}) random.fill(*x);
        const std::vector<T> before = out;
        std::vector<T> guarded = out;
        kernels.values(values.data(), stride, n, p.data(), rescale.data(), dim, out.data(), {});
        kernels.guarded_values(values.data(), stride, n, p.data(), visible.data(), rescale.data(), dim, guarded.data(),
                               lanes);
        EXPECT_EQ(support::differing(guarded, out), 0u) << "guarded, with everything visible";
        for (Index d = 0; d < dim; ++d)
          for (Index lane = 0; lane < lanes; ++lane) {
            const auto at = static_cast<std::size_t>(d * lanes + lane);
            double sum = double(before[at]) * double(rescale[static_cast<std::size_t>(lane)]),
                   magnitude = std::abs(sum);
            for (Index k = 0; k < n; ++k) {
              const double term = double(values[static_cast<std::size_t>(k * stride + d)]) *
                                  double(p[static_cast<std::size_t>(k * lanes + lane)]);
              sum += term;
              magnitude += std::abs(term);
            }
            EXPECT_NEAR(double(out[at]), sum, (n + 3) * 2 * support::unit_roundoff<T>() * magnitude);
          }
      }
  });
}

TYPED_TEST(TileKernels, GuardedValuesLeaveHiddenPairsOut) {
  using T = TypeParam;
  support::Random random("guarded values");
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes, n = 9, dim = 11;
    std::vector<T> values(static_cast<std::size_t>(n * dim)), p(count(n, lanes)), visible(count(n, lanes), T(1)),
        rescale(count(1, lanes), T(1)), out(count(dim, lanes), T(0));
    random.fill(values);
    for (T& x : p) x = static_cast<T>(random.uniform(0, 1));
    // Key 4 is poisoned and hidden from the even lanes.
    for (Index lane = 0; lane < lanes; lane += 2) {
      p[static_cast<std::size_t>(4 * lanes + lane)] = T(0);
      visible[static_cast<std::size_t>(4 * lanes + lane)] = T(0);
    }
    std::vector<T> clean = out;
    kernels.guarded_values(values.data(), dim, n, p.data(), visible.data(), rescale.data(), dim, clean.data(), lanes);
    for (const T poison : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      for (Index d = 0; d < dim; ++d) values[static_cast<std::size_t>(4 * dim + d)] = poison;
      std::vector<T> poisoned(out.size(), T(0));
      kernels.guarded_values(values.data(), dim, n, p.data(), visible.data(), rescale.data(), dim, poisoned.data(),
                             lanes);
      for (std::size_t at = 0; at < out.size(); ++at)
        if (at % static_cast<std::size_t>(lanes) % 2 == 0) {
          EXPECT_EQ(support::bits(poisoned[at]), support::bits(clean[at]));
        } else {
          EXPECT_FALSE(std::isfinite(poisoned[at]));
        }
    }
  });
}

TYPED_TEST(TileKernels, ScoresAreDotProductsOfKeysAndQueries) {
  using T = TypeParam;
  support::Random random("scores");
  this->for_each_tile([&](const auto& kernels) {
    const Index lanes = kernels.lanes, n = 13, dim = 5;
    std::vector<T> keys(static_cast<std::size_t>(n * dim)), q(count(dim, lanes)), s(count(n, lanes));
    random.fill(keys);
    random.fill(q);
    kernels.scores({keys.data(), dim, q.data(), lanes, s.data(), lanes, n, dim});
    for (Index k = 0; k < n; ++k)
      for (Index lane = 0; lane < lanes; ++lane) {
        double dot = 0;
        for (Index d = 0; d < dim; ++d)
          dot += double(keys[static_cast<std::size_t>(k * dim + d)]) *
                 double(q[static_cast<std::size_t>(d * lanes + lane)]);
        EXPECT_NEAR(double(s[static_cast<std::size_t>(k * lanes + lane)]), dot, 200 * support::unit_roundoff<T>());
      }
  });
}

}  // namespace
