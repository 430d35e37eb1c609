// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/epilogue.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "exact_activations.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Epilogue;
using mha::Index;
using mha::Tensor;
using mha::TensorView;

/// A user's: long, and of all the maths there is.
struct Wavy {
  double slope = 0.75;
  template <class S> S operator()(const S& x) const {
    return mha::select(x < S(0), mha::erf(x) * S(slope), mha::tanh(x) + mha::min(x, 2)) + mha::exp(-mha::abs(x)) * x;
  }
};

template <class T> class SimdEpilogue : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(SimdEpilogue, Scalars, );

constexpr Index rows = 5, stride = 96, columns = 64;  // whole registers of every level

template <class A> std::vector<A> sums(support::Random& random) {
  std::vector<A> c(std::size_t{rows * stride});
  for (A& x : c) x = static_cast<A>(random.uniform(-6, 6));
  return c;
}

template <class T, class F> void expect_activation(F f, bool gated) {
  using A = mha::Accumulator<T>;
  support::Random random("activation");
  unit::for_each_level([&](auto isa) {
    const auto before = sums<A>(random), gate = sums<A>(random);
    auto c = before;
    if (gated)
      simd::AnyEpilogue<T>(Epilogue<T, mha::Gated<F>>{{f}, {}}, decltype(isa)::level)
          .apply(decltype(isa)::level, c.data(), stride, gate.data(), stride, 0, 0, rows, columns);
    else
      simd::AnyEpilogue<T>(Epilogue<T, F>{f, {}}, decltype(isa)::level)
          .apply(decltype(isa)::level, c.data(), stride, nullptr, 0, 0, 0, rows, columns);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < stride; ++j) {
        const auto at = static_cast<std::size_t>(i * stride + j);
        const auto x = static_cast<double>(before[at]);
        const double exact = gated ? f(static_cast<double>(gate[at])) * x : f(x);
        constexpr bool for_bfloat16 = std::is_same_v<T, mha::bfloat16> && requires(F g) { g.for_bfloat16(0.f); };
        const double near = 20 * std::numeric_limits<A>::epsilon() * (1 + std::abs(exact));
        if (j >= columns)
          ASSERT_EQ(support::bits(c[at]), support::bits(before[at])) << i << " " << j;
        else
          ASSERT_NEAR(static_cast<double>(c[at]), exact, for_bfloat16 ? std::ldexp(std::abs(exact), -14) : near)
              << i << " " << j;
      }
  });
}

TYPED_TEST(SimdEpilogue, AppliesFunctorsToWholeRegisters) {
  using T = TypeParam;
  for (const bool gated : {false, true}) {
    expect_activation<T>(mha::Relu{}, gated);
    expect_activation<T>(mha::Gelu{}, gated);
    expect_activation<T>(mha::GeluTanh{}, gated);
    expect_activation<T>(mha::Silu{}, gated);
    expect_activation<T>(Wavy{}, gated);
  }
  expect_activation<T>(mha::Identity{}, true);
}

TYPED_TEST(SimdEpilogue, AddsABiasBeforeTheActivation) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("biased activation");
  unit::for_each_level([&](auto isa) {
    constexpr auto level = decltype(isa)::level;
    const auto before = sums<A>(random), gate = sums<A>(random), bias = sums<A>(random), gate_bias = sums<A>(random);
    for (const bool gated : {false, true}) {
      const Epilogue<T, mha::Silu> plain{{}, {}};
      const Epilogue<T, mha::Gated<mha::Silu>> pair{{{}}, {}};
      const auto epilogue = gated ? simd::AnyEpilogue<T>(pair, level) : simd::AnyEpilogue<T>(plain, level);
      auto c = before, biased = before, biased_gate = gate;
      for (std::size_t i = 0; i < c.size(); ++i) {
        biased[i] += bias[i % stride];
        biased_gate[i] += gate_bias[i % stride];
      }
      epilogue.activate({epilogue.activation, c.data(), stride, gated ? gate.data() : nullptr, stride, rows, columns,
                         bias.data(), gated ? gate_bias.data() : nullptr});
      epilogue.apply(level, biased.data(), stride, gated ? biased_gate.data() : nullptr, stride, 0, 0, rows, columns);
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < columns; ++j) {
          const auto at = static_cast<std::size_t>(i * stride + j);
          ASSERT_EQ(support::bits(c[at]), support::bits(biased[at])) << i << " " << j;
        }
    }
  });
}

/// f of numbers of every size from `low` up is within `allowed` ulp, at every level, whatever multiply-adds it has.
template <class A, class F, class Exact, class Allowed>
void expect_stated_error(F f, Exact exact, double low, Allowed allowed) {
  support::Random random("stated errors");
  unit::for_each_level([&](auto isa) {
    const simd::AnyEpilogue<A> epilogue(Epilogue<A, F>{f, {}}, decltype(isa)::level);
    long double worst = 0;
    for (int round = 0; round < 60; ++round) {
      auto c = sums<A>(random);
      for (std::size_t i = 0; i < c.size(); ++i)
        c[i] = static_cast<A>(random.uniform(low, 14) * (i % 3 == 0 ? std::ldexp(1, -random.below(100)) : 1));
      const auto before = c;
      epilogue.apply(decltype(isa)::level, c.data(), stride, nullptr, 0, 0, 0, rows, columns);
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < columns; ++j) {
          const auto at = static_cast<std::size_t>(i * stride + j);
          const auto x = static_cast<long double>(before[at]);
          worst = support::maximum(worst, support::ulp_error(c[at], exact(x)) / allowed(x));
        }
    }
    EXPECT_LT(worst, 1) << to_string(decltype(isa)::level);
    EXPECT_GT(worst, 0.03L) << "nothing was measured";
  });
}

TYPED_TEST(SimdEpilogue, ActivationsAreWithinTheirStatedErrors) {
  using T = TypeParam;
  if constexpr (std::is_same_v<T, mha::Accumulator<T>>) {
    constexpr bool is_float = std::is_same_v<T, float>;
    const auto seven = [](long double) { return 7.0L; };
    const auto four = [](long double) { return 4.0L; };
    const auto of_tanh = [](long double x) { return 8 + 10 * std::abs(support::tanh_argument(x)); };
    expect_stated_error<T>(mha::Gelu{}, support::gelu, is_float ? -12.5 : -37, seven);
    expect_stated_error<T>(mha::GeluTanh{}, support::gelu_tanh, is_float ? -9 : -20, of_tanh);
    expect_stated_error<T>(mha::Silu{}, support::silu, is_float ? -87 : -708, four);
  }
}

// Wherever an element stands, whatever stands beside it.
TYPED_TEST(SimdEpilogue, BitsDependOnTheNumberAlone) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("bits");
  const Epilogue<T, Wavy> wavy{};
  unit::for_each_level([&](auto isa) {
    const simd::AnyEpilogue<T> epilogue(wavy, decltype(isa)::level);
    auto c = sums<A>(random);
    const A x = c[0];
    for (Index j = 0; j < columns; j += 1 + random.below(3)) c[static_cast<std::size_t>(stride + j)] = x;
    const auto before = c;
    epilogue.apply(decltype(isa)::level, c.data(), stride, nullptr, 0, 0, 0, rows, columns);
    for (std::size_t i = 0; i < c.size(); ++i)
      if (static_cast<Index>(i) % stride < columns && before[i] == x) {
        ASSERT_EQ(support::bits(c[i]), support::bits(c[0])) << i;
      }
  });
}

TYPED_TEST(SimdEpilogue, AddsAResidualOfAnyStrides) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("residual");
  for (const Index width : {1, 7, 16, 47, 64}) {
    Tensor<T, 2> wide(2 * rows, 3 * columns), tall(columns, rows);
    random.fill(wide);
    random.fill(tall);
    const TensorView<const T, 2> residuals[] = {
        {wide.data(), {rows, width}, {3 * columns, 1}},
        {wide.data() + 1, {rows, width}, {2 * 3 * columns, 2}},
        {wide.data() + (2 * rows * 3 * columns - 1), {rows, width}, {-3 * columns, -1}},
        {tall.data(), {rows, width}, {1, rows}},
        {wide.data(), {rows, width}, {0, 1}},
    };
    for (const auto& residual : residuals)
      unit::for_each_level([&](auto isa) {
        const simd::AnyEpilogue<T> epilogue(Epilogue<T>{{}, residual}, decltype(isa)::level);
        EXPECT_EQ(epilogue.activate, nullptr);
        const auto before = sums<A>(random);
        auto c = before;
        epilogue.apply(decltype(isa)::level, c.data(), stride, nullptr, 0, 0, 0, rows, width);
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < stride; ++j) {
            const auto at = static_cast<std::size_t>(i * stride + j);
            const A expected = j < width ? before[at] + static_cast<A>(residual(i, j)) : before[at];
            ASSERT_EQ(support::bits(c[at]), support::bits(expected)) << i << " " << j;
          }
      });
  }
}

/// Sums of drawn sizes, into memory that held NaN or into that of the sums or the residual, by three threads and
/// row by row.
template <class T, class F> void expect_stored(support::Random& random, F f, mha::IsaLevel level) {
  using A = mha::Accumulator<T>;
  constexpr bool gated = mha::detail::is_gated<F>;
  const Index m = 1 + random.below(400), n = 1 + random.below(150), step = 1 + random.below(2);
  Tensor<A, 2> sum(m, n * step), gate(m, n);
  Tensor<T, 2> residual(n, m), to(m, n * step + 3);
  random.fill(sum);
  random.fill(gate);
  random.fill(residual);
  std::fill(to.begin(), to.end(), T(std::numeric_limits<A>::quiet_NaN()));
  const TensorView<const A, 2> from{sum.data(), {m, n}, {n * step, step}};
  const TensorView<T, 2> out{to.data(), {m, n}, {n * step + 3, step}};
  constexpr bool may_be_sums = std::is_same_v<T, A>;
  const int where = random.below(3);  // apart, the sums themselves, the residual itself
  TensorView<const A, 2> sums = from;
  TensorView<const T, 2> added = mha::transposed(std::as_const(residual).view());
  if (random.chance(0.3)) added = {};
  if (where > 0)
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) out(i, j) = where == 1 ? static_cast<T>(from(i, j)) : residual(j, i);
  if constexpr (may_be_sums)
    if (where == 1) sums = out;
  if (where == 2) added = out;
  Tensor<double, 2> expected(m, n), coarse(m, n);  // `coarse`: the error of ours for bfloat16
  const auto has_coarse = [](const auto& activation) {
    return std::is_same_v<T, mha::bfloat16> && requires { activation.for_bfloat16(0.f); };
  };
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      const auto x = static_cast<double>(from(i, j));
      bool is_coarse = false;
      if constexpr (gated) {
        expected(i, j) = f.activation(static_cast<double>(gate(i, j))) * x;
        is_coarse = has_coarse(f.activation);
      } else {
        expected(i, j) = f(x);
        is_coarse = has_coarse(f);
      }
      coarse(i, j) = is_coarse ? std::ldexp(std::abs(expected(i, j)), -14) : 0;
      if (added.data != nullptr) expected(i, j) += static_cast<double>(added(i, j));
    }
  Tensor<T, 2> alone(1, n);
  const Index row = random.below(m);
  mha::Workspace workspace;
  const auto row_of = [&](const auto& v) {
    using View = std::remove_cvref_t<decltype(v)>;
    return v.data == nullptr ? v : View{&v(row, 0), {1, n}, {v.stride[0], v.stride[1]}};
  };
  const TensorView<const A, 2> gates = gated ? std::as_const(gate).view() : TensorView<const A, 2>{};
  const Epilogue<T, F> of_row{f, row_of(added)}, of_all{f, added};
  simd::apply_epilogue(simd::AnyEpilogue<T>(of_row, level), row_of(gates), row_of(sums), alone.view(), level, workspace,
                       mha::Serial{}, simd::narrow_kernel<A, T>(level));
  simd::apply_epilogue(simd::AnyEpilogue<T>(of_all, level), gates, sums, out, level, workspace, mha::ThreadPool(3),
                       simd::narrow_kernel<A, T>(level));
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      const double x = expected(i, j), computed = 40 * static_cast<double>(std::numeric_limits<A>::epsilon());
      ASSERT_NEAR(static_cast<double>(out(i, j)), x,
                  computed * (1 + std::abs(x)) + coarse(i, j) + 1.01 * support::storage_error<T>(x))
          << m << " x " << n << ", " << i << " " << j << ", where " << where;
      if (i == row) {
        ASSERT_EQ(support::bits(out(i, j)), support::bits(alone(0, j)));
      }
    }
}

TYPED_TEST(SimdEpilogue, AppliesItselfToStoredSums) {
  using T = TypeParam;
  support::Random random("stored");
  unit::for_each_level([&](auto isa) {
    for (int i = 0; i < 6; ++i) {
      expect_stored<T>(random, mha::Gelu{}, decltype(isa)::level);
      expect_stored<T>(random, mha::SwiGlu{}, decltype(isa)::level);
      expect_stored<T>(random, mha::Identity{}, decltype(isa)::level);
      expect_stored<T>(random, Wavy{}, decltype(isa)::level);
    }
  });
}

TEST(SimdEpilogueMemory, IsSharedWhereRangesMeet) {
  Tensor<float, 2> x(8, 8), y(8, 8);
  const auto reads = [](const TensorView<const float, 2>& residual, const TensorView<float, 2>& c) {
    return simd::AnyEpilogue<float>(Epilogue<float>{{}, residual}, mha::IsaLevel::baseline).reads(c);
  };
  EXPECT_TRUE(reads(x.view(), x.view()));
  EXPECT_FALSE(reads(x.view(), y.view()));
  EXPECT_FALSE(reads({}, y.view()));
  EXPECT_FALSE(reads({x.data(), {4, 8}, {8, 1}}, {x.data() + 32, {4, 8}, {8, 1}}));
  EXPECT_TRUE(reads({x.data(), {4, 8}, {8, 1}}, {x.data() + 31, {4, 8}, {8, 1}}));
  EXPECT_TRUE(reads({x.data() + 63, {4, 8}, {-8, -1}}, {x.data() + 32, {4, 8}, {8, 1}}));
  EXPECT_FALSE(reads({x.data() + 31, {4, 8}, {-8, -1}}, {x.data() + 32, {4, 8}, {8, 1}}));
}

}  // namespace
