// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/executor.hpp>
#include <mha/backend/simd/epilogue_backward.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

/// A user's, which dual numbers differentiate.
struct Wavy {
  double slope = 0.75;
  template <class S> S operator()(const S& x) const {
    return mha::select(x < S(0), mha::erf(x) * S(slope), mha::tanh(x) + mha::min(x, 2)) + mha::exp(-mha::abs(x)) * x;
  }
};

template <class A> class SimdEpilogueBackward : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(SimdEpilogueBackward, Scalars);

template <class A, class F> void expect_level(mha::IsaLevel level, const F& f, bool gated, Index rows, Index columns) {
  constexpr Index gap = 3;
  support::Random random("derivatives");
  const auto sums_at = columns, dy_at = columns + gap, to_at = 2 * columns + gap;
  const auto make = [&](Index stride) {
    std::vector<A> v(static_cast<std::size_t>(rows * stride));
    for (A& x : v) x = static_cast<A>(random.uniform(-6, 6));
    return v;
  };
  auto sum = make(sums_at), gate = make(sums_at), dy = make(dy_at);
  std::vector<A> to(static_cast<std::size_t>(rows * to_at));
  support::poison_all(to);
  if (rows > 1) {  // a NaN that a gradient of 0 hides
    dy[static_cast<std::size_t>(dy_at)] = 0;
    sum[static_cast<std::size_t>(sums_at)] = gate[static_cast<std::size_t>(sums_at)] =
        std::numeric_limits<A>::quiet_NaN();
  }
  const auto view = [&](auto* data, Index stride) {
    return mha::TensorView<std::remove_pointer_t<decltype(data)>, 2>{data, {rows, columns}, {stride, 1}};
  };
  const std::vector<A>&s = sum, &g = gate, &d = dy;
  mha::EpilogueBackwardCall<A, mha::Identity> call{{}, {}, view(s.data(), sums_at), view(d.data(), dy_at), {}, {}};
  call.d_sum = view(to.data() + columns, to_at);
  if (gated) call.gate = view(g.data(), sums_at);
  if (gated) call.d_gate = view(to.data(), to_at);
  simd::differentiate(simd::AnyDerivative<A>(f, level), call, mha::Serial{});
  const double bound = 30 * static_cast<double>(std::numeric_limits<A>::epsilon());
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < to_at; ++j) {
      const A given = to[static_cast<std::size_t>(i * to_at + j)];
      if (j >= 2 * columns || (!gated && j < columns)) {
        EXPECT_EQ(support::bits(given), support::bits(support::poison<A>()));  // nothing beside the rows is written
        continue;
      }
      const Index c = j % columns;
      const double dy_ij = dy[static_cast<std::size_t>(i * dy_at + c)],
                   sum_ij = sum[static_cast<std::size_t>(i * sums_at + c)],
                   gate_ij = gate[static_cast<std::size_t>(i * sums_at + c)];
      if (dy_ij == 0) {
        EXPECT_EQ(given, 0);
        continue;
      }
      const auto slope = [&](double x) { return f(mha::Dual<double>::variable(x)).derivative[0]; };
      const double expected = !gated        ? dy_ij * slope(sum_ij)
                              : j < columns ? dy_ij * sum_ij * slope(gate_ij)
                                            : dy_ij * f(gate_ij);
      EXPECT_NEAR(given, expected, bound * std::abs(dy_ij) * std::max(1., std::abs(sum_ij))) << i << ", " << j;
    }
}

TYPED_TEST(SimdEpilogueBackward, IsTheFormulaAtEveryLevel) {
  unit::for_each_level([&](auto isa) {
    constexpr mha::IsaLevel level = decltype(isa)::level;
    for (const bool gated : {false, true})
      for (const Index columns : {1, 5, 16, 39}) {
        expect_level<TypeParam>(level, mha::Gelu{}, gated, 4, columns);
        expect_level<TypeParam>(level, mha::GeluTanh{}, gated, 4, columns);
        expect_level<TypeParam>(level, mha::Silu{}, gated, 4, columns);
        expect_level<TypeParam>(level, mha::Relu{}, gated, 1, columns);
        expect_level<TypeParam>(level, Wavy{}, gated, 4, columns);
      }
  });
}

}  // namespace
