// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/row_sums.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

template <class T, class B> void expect_loops(double bound) {
  using A = mha::Accumulator<T>;
  support::Random random("column sums");
  for (const Index rows : {0, 1, 63, 64, 65, 128, 300})
    for (const Index columns : {0, 1, 7}) {
      mha::Tensor<T, 2> x(rows, columns + 2);
      mha::Tensor<A, 2> to(columns, 2);
      random.fill(x), random.fill(to);
      const auto before = to;
      typename B::Workspace workspace;
      const B backend;
      const mha::TensorView<const T, 2> part{x.data(), {rows, columns}, {columns + 2, 1}};
      mha::detail::add_column_sums(rows, mha::detail::ElementTerm<T>{part},
                                   mha::TensorView<A, 1>{to.data(), {columns}, {2}},
                                   mha::detail::ItemsOn<B>{backend, workspace});
      for (Index j = 0; j < columns; ++j) {
        double sum = double(before(j, 0));
        for (Index i = 0; i < rows; ++i) sum += support::to_double(x(i, j));
        EXPECT_NEAR(double(to(j, 0)), sum, bound * (1 + std::abs(sum))) << rows << " rows, column " << j;
        EXPECT_EQ(to(j, 1), before(j, 1)) << "between the results";
      }
    }
}

TEST(ColumnSums, EqualLoops) {
  expect_loops<double, mha::Reference>(1e-13);
  // The sum is rounded, and what is added to it once more: each by 2⁻²⁴ at most.
  expect_loops<float, mha::Cpu>(2e-7);
  expect_loops<mha::bfloat16, mha::Cpu>(2e-7);
}

// 1 + 2²⁴ in float is 2²⁴: those of more rows than a block are added in double.
TEST(ColumnSums, AreRoundedOnce) {
  mha::Tensor<float, 2> x(200, 1);
  for (Index i = 0; i < 200; ++i) x(i, 0) = i == 0 ? 0x1p24f : 1;
  mha::Tensor<float, 1> to(1);
  mha::Workspace workspace;
  const mha::Reference backend;
  mha::detail::add_column_sums(200, mha::detail::ElementTerm<float>{std::as_const(x).view()}, to.view(),
                               mha::detail::ItemsOn<mha::Reference>{backend, workspace});
  EXPECT_EQ(to(0), 0x1p24f + 200);
}

TEST(AddRowSums, AddsInDoubleWithTheSameBitsForAnyThreads) {
  constexpr Index m = 40000, n = 3;
  mha::Tensor<float, 2> d(m, n);
  support::Random("row sums").fill(d);
  const auto row = [v = std::as_const(d).view()](std::ptrdiff_t i, double* sums) {
    for (Index j = 0; j < n; ++j) sums[j] += double(v(i, j));
  };
  const auto sums = [&](const auto& backend) {
    mha::Workspace workspace;
    mha::Tensor<float, 1> to(n);
    to(1) = 5;
    mha::detail::add_row_sums<float>(m, 100, row, to.view(),
                                     mha::detail::ItemsOn<std::remove_cvref_t<decltype(backend)>>{backend, workspace});
    return to;
  };
  const auto one = sums(mha::CpuWith<mha::Serial>{});
  for (const int threads : {2, 3}) EXPECT_EQ(support::differing(one, sums(mha::Cpu(mha::ThreadPool(threads)))), 0u);
  for (Index j = 0; j < n; ++j) {
    double sum = 0;
    for (Index i = 0; i < m; ++i) sum += double(d(i, j));
    EXPECT_EQ(one(j), (j == 1 ? 5.f : 0.f) + float(sum)) << j;
  }
}

// The last block is not whole, and the memory of the sums has numbers of an earlier call.
TEST(AddRowSums, AddsEveryRowOnceWhateverTheirNumber) {
  mha::Tensor<float, 2> d(400, 2);
  support::Random("row sums of any number").fill(d);
  std::ptrdiff_t last = 0;
  const auto row = [&last, v = std::as_const(d).view()](std::ptrdiff_t i, double* sums) {
    last = std::max(last, i);
    if (i < 400)
      for (Index j = 0; j < 2; ++j) sums[j] += double(v(static_cast<Index>(i), j));
  };
  for (const Index rows : {0, 1, 63, 64, 65, 127, 128, 129, 300}) {
    mha::Workspace workspace;
    {
      auto frame = workspace.frame();
      std::fill_n(frame.take<double>(64), 64, 1e30);
    }
    const mha::Reference backend;
    mha::Tensor<float, 2> to(2, 3);
    to(1, 0) = 5;
    last = -1;
    mha::detail::add_row_sums<float>(rows, 1, row, mha::TensorView<float, 1>{to.data(), {2}, {3}},
                                     mha::detail::ItemsOn<mha::Reference>{backend, workspace});
    EXPECT_EQ(last, rows - 1);
    for (Index j = 0; j < 2; ++j) {
      double sum = 0;
      for (Index i = 0; i < rows; ++i) sum += double(d(i, j));
      EXPECT_NEAR(to(j, 0), sum + 5 * j, 1e-5) << rows;
      EXPECT_EQ(to(j, 1), 0) << "between the results";
    }
  }
}

}  // namespace
