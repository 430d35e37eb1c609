// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "every_isa.hpp"
#include "random.hpp"
#include "strided_matrix.hpp"

namespace {

using mha::Index;
using mha::TensorView;
using support::Layout;
using support::layouts;
using support::Random;

template <class T, class Backend>
void expect_product(Index m, Index n, Index k, Layout of_a, Layout of_b, Layout of_c, bool with_bias, Random& random) {
  SCOPED_TRACE("(" + std::to_string(m) + ", " + std::to_string(k) + ") x (" + std::to_string(k) + ", " +
               std::to_string(n) + "), a " + std::to_string(int(of_a)) + ", b " + std::to_string(int(of_b)) + ", c " +
               std::to_string(int(of_c)));
  support::StridedMatrix<T> a(of_a, m, k), b(of_b, k, n), c(of_c, m, n);
  a.fill(random);
  b.fill(random);
  std::vector<T> bias(static_cast<std::size_t>(2 * n));
  random.fill(bias);
  TensorView<const T, 1> bias_view;
  if (with_bias) bias_view = {bias.data(), {n}, {2}};
  mha::Workspace workspace;
  Backend{}.gemm(mha::GemmCall<T>{a.view, b.view, bias_view, c.view}, workspace);
  using A = mha::Accumulator<T>;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = with_bias ? support::to_double(bias_view(j)) : 0, magnitude = std::abs(sum);
      for (Index l = 0; l < k; ++l) {
        const double term = support::to_double(a.view(i, l)) * support::to_double(b.view(l, j));
        sum += term;
        magnitude += std::abs(term);
      }
      // γ_k of the sum, and one rounding to storage.
      ASSERT_NEAR(support::to_double(c.view(i, j)), sum,
                  (k + 4) * 2 * support::unit_roundoff<A>() * magnitude + 1.1 * support::storage_error<T>(sum))
          << i << ", " << j;
    }
  std::size_t untouched = 0;
  for (const T x : c.memory)
    if (support::bits(x) == support::bits(support::poison<T>())) ++untouched;
  EXPECT_EQ(untouched, c.memory.size() - static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
}

template <class T> class Gemm : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Gemm, Scalars);

TYPED_TEST(Gemm, MultipliesEveryShapeAndLayoutAtEveryLevel) {
  Random random("gemm");
  support::at_every_isa([&] {
    for (const Index m : {1, 2, 4, 5, 17, 70})
      for (const Index n : {1, 3, 16, 50})
        for (const Index k : {1, 7, 300}) {
          const Layout of_a = layouts[random.below(6)], of_b = layouts[random.below(6)],
                       of_c = layouts[random.below(5)];
          expect_product<TypeParam, mha::CpuWith<mha::Serial>>(m, n, k, of_a, of_b, of_c, random.chance(0.5), random);
        }
    for (const Layout of_a : layouts)
      for (const Layout of_b : layouts)
        expect_product<TypeParam, mha::CpuWith<mha::Serial>>(9, 8, 11, of_a, of_b, Layout::gaps, true, random);
  });
}

TYPED_TEST(Gemm, SharesLargeProductsAmongThreads) {
  Random random("parallel gemm");
  expect_product<TypeParam, mha::Cpu>(130, 140, 150, Layout::rows, Layout::rows, Layout::rows, true, random);
  expect_product<TypeParam, mha::Cpu>(3, 700, 1000, Layout::rows, Layout::columns, Layout::gaps, true, random);
  expect_product<TypeParam, mha::Cpu>(150, 130, 140, Layout::gaps, Layout::columns, Layout::columns, false, random);
}

TYPED_TEST(Gemm, ManyRowsMeetAMatrixOfAnyLayout) {
  Random random("gemm of many rows");
  for (const Layout of_b : layouts) {
    expect_product<TypeParam, mha::CpuWith<mha::Serial>>(129, 37, 270, Layout::rows, of_b, Layout::gaps, true, random);
    expect_product<TypeParam, mha::Cpu>(260, 19, 1, layouts[random.below(6)], of_b, Layout::columns, false, random);
    expect_product<TypeParam, mha::Cpu>(131, 5, 0, Layout::rows, of_b, Layout::rows, true, random);
    expect_product<TypeParam, mha::Cpu>(131, 0, 5, Layout::rows, of_b, Layout::rows, false, random);
  }
}

TYPED_TEST(Gemm, BitsDoNotDependOnThreads) {
  using T = TypeParam;
  Random random("gemm bits");
  mha::Tensor<T, 2> a(131, 160), b(160, 150), serial(131, 150), pooled(131, 150);
  random.fill(a);
  random.fill(b);
  mha::Workspace workspace;
  mha::CpuWith<mha::Serial>{}.gemm(mha::GemmCall<T>{a.view(), b.view(), {}, serial.view()}, workspace);
  mha::Cpu{}.gemm(mha::GemmCall<T>{a.view(), b.view(), {}, pooled.view()}, workspace);
  EXPECT_EQ(support::differing(serial, pooled), 0u);
}

TYPED_TEST(Gemm, EmptyDepthLeavesTheBias) {
  using T = TypeParam;
  mha::Tensor<T, 2> a(3, 0), b(0, 2), c(3, 2);
  support::poison_all(c);
  mha::Tensor<T, 1> bias(2);
  bias(0) = Random::rounded<T>(2);
  bias(1) = Random::rounded<T>(-3);
  mha::Workspace workspace;
  mha::Cpu{}.gemm(mha::GemmCall<T>{a.view(), b.view(), bias.view(), c.view()}, workspace);
  for (Index i = 0; i < 3; ++i) {
    EXPECT_EQ(support::to_double(c(i, 0)), 2);
    EXPECT_EQ(support::to_double(c(i, 1)), -3);
  }
}

/// Hands the tasks to as many workers as it is told, one after another.
template <int Workers> struct Pretended {
  static constexpr const char* name = "Pretended";
  Index workers() const { return Workers; }
  template <class F> void run(Index tasks, F&& f) const {
    for (Index t = 0; t < tasks; ++t) f(t, t % Workers);
  }
};

// Few rows against a transposed matrix take Eigen's path, which must not be cut by the number of workers.
TYPED_TEST(Gemm, BitsOfFewRowsDoNotDependOnWorkers) {
  using T = TypeParam;
  Random random("gemm few rows");
  for (const Index rows : {2, 3, 4}) {
    mha::Tensor<T, 2> a(rows, 1030), b(1030, 1030), alone(rows, 1030), shared(rows, 1030);
    random.fill(a);
    random.fill(b);
    mha::Workspace workspace;
    const auto transposed = mha::transposed(mha::TensorView<const T, 2>(b.view()));
    mha::detail::cpu::gemm(mha::GemmCall<T>{a.view(), transposed, {}, alone.view()}, workspace, Pretended<1>{});
    mha::detail::cpu::gemm(mha::GemmCall<T>{a.view(), transposed, {}, shared.view()}, workspace, Pretended<4>{});
    EXPECT_EQ(support::differing(alone, shared), 0u) << rows;
  }
}

}  // namespace
