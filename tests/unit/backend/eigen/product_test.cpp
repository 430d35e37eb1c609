// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/product.hpp>

#include "compare.hpp"
#include "random.hpp"
#include "strided_matrix.hpp"

namespace {

using mha::Index;
using mha::TensorView;
using support::Layout;
using support::layouts;

/// Against sums in long double, nothing beside the result written.
template <class T>
void expect_product(Index m, Index n, Index k, Layout of_a, Layout of_b, Layout of_c, bool with_bias,
                    support::Random& random) {
  SCOPED_TRACE("(" + std::to_string(m) + ", " + std::to_string(k) + ") x (" + std::to_string(k) + ", " +
               std::to_string(n) + "), a " + std::to_string(int(of_a)) + ", b " + std::to_string(int(of_b)) + ", c " +
               std::to_string(int(of_c)));
  support::StridedMatrix<T> a(of_a, m, k), b(of_b, k, n), c(of_c, m, n);
  a.fill(random);
  b.fill(random);
  std::vector<T> bias(static_cast<std::size_t>(2 * n));
  for (T& x : bias) x = static_cast<T>(static_cast<mha::Accumulator<T>>(random.normal()));
  TensorView<const T, 1> bias_view;
  if (with_bias) bias_view = {bias.data(), {n}, {2}};
  mha::Workspace workspace;
  mha::detail::eigen::gemm(mha::GemmCall<T>{a.view, b.view, bias_view, c.view}, workspace, mha::Serial{});
  using A = mha::Accumulator<T>;
  const auto wide = [](T x) { return static_cast<long double>(static_cast<A>(x)); };
  const long double sums = std::numeric_limits<A>::epsilon(), stored = std::is_same_v<T, A>           ? 0
                                                                       : std::is_same_v<T, mha::half> ? 0x1p-11L
                                                                                                      : 0x1p-8L;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      long double sum = with_bias ? wide(bias_view(j)) : 0, magnitude = std::fabs(sum);
      for (Index l = 0; l < k; ++l) {
        const long double term = wide(a.view(i, l)) * wide(b.view(l, j));
        sum += term;
        magnitude += std::fabs(term);
      }
      const long double error = std::fabs(wide(c.view(i, j)) - sum);
      ASSERT_LE(error, (k + 2) * sums * magnitude + stored * std::fabs(sum) + 1e-7L * (stored > 0)) << i << ", " << j;
    }
}

template <class T> class EigenGemm : public testing::Test {};
using Scalars = testing::Types<float, double, long double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(EigenGemm, Scalars);

TYPED_TEST(EigenGemm, AnyStridesAgreeWithSums) {
  support::Random random("Eigen's products");
  for (const Layout a : layouts)
    for (const Layout b : layouts)
      for (const Layout c : layouts) {
        if (c == Layout::overlapping) continue;
        expect_product<TypeParam>(1 + random.below(9), 1 + random.below(9), random.below(9), a, b, c,
                                  random.chance(0.5), random);
      }
}

TYPED_TEST(EigenGemm, EdgesOfTilesAgreeWithSums) {
  support::Random random("edges of Eigen's products");
  constexpr Index shapes[][3] = {{1, 300, 7}, {257, 2, 65}, {3, 257, 129}, {0, 5, 3}, {4, 0, 3}, {255, 3, 128}};
  for (const auto& [m, n, k] : shapes)
    for (const Layout b : {Layout::rows, Layout::columns, Layout::gaps})
      expect_product<TypeParam>(m, n, k, Layout::rows, b, Layout::rows, true, random);
}

TEST(EigenRows, AreReadWhereTheyLieOrCopied) {
  float memory[12], copy[12];
  for (int i = 0; i < 12; ++i) memory[i] = static_cast<float>(i);
  using mha::detail::eigen::read_rows;
  const auto in_place = read_rows<float>(TensorView<const float, 2>{memory, {3, 3}, {4, 1}}, copy);
  EXPECT_EQ(in_place.data, memory);
  EXPECT_EQ(in_place.stride, 4);
  const auto reversed = read_rows<float>(TensorView<const float, 2>{memory + 8, {3, 2}, {-4, 1}}, copy);
  EXPECT_EQ(reversed.data, copy);
  EXPECT_EQ(reversed.stride, 2);
  EXPECT_EQ(copy[2], 4.f);
  EXPECT_EQ(copy[5], 1.f);
}

}  // namespace
