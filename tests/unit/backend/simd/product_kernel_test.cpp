// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/isa.hpp>
#include <mha/backend/simd/product_kernel.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::IsaLevel;
namespace simd = mha::detail::simd;

template <class T> struct WideProduct {
  Index lanes;
  simd::ProductKernel<T> run;
};

/// Bodies of the shapes that tiles use: one register of columns, few rows, many of both.
template <class T> WideProduct<T> product_kernel(IsaLevel level, Index rows, Index columns) {
  return simd::with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    constexpr bool many_registers = Isa::registers == 32;
    constexpr int vectors = Isa::level == IsaLevel::baseline ? 2 : 3;
    constexpr Index width = simd::Vector<T, Isa>::width;
    if (columns <= width) return WideProduct<T>{width, &Isa::template run<simd::ProductBody<T, 8, 1>>};
    if (rows <= 4)
      return WideProduct<T>{6 * width, &Isa::template run<simd::ProductBody<T, many_registers ? 4 : 2, 6>>};
    return WideProduct<T>{vectors * width, &Isa::template run<simd::ProductBody<T, many_registers ? 8 : 4, vectors>>};
  });
}

template <class F> void at_every_level(F&& f) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    SCOPED_TRACE(mha::to_string(static_cast<IsaLevel>(level)));
    f(static_cast<IsaLevel>(level));
  }
}

/// The shapes that choose the kernels: few columns, few rows, many of both.
struct Choice {
  Index rows, columns;
};
constexpr Choice choices[] = {{100, 1}, {3, 100}, {100, 100}};

/// Operands with room around every row, the room of c poisoned.
template <class T> struct Product {
  Index n, depth, lanes;
  std::ptrdiff_t rows_stride, columns_stride, c_stride;
  std::vector<T> rows, columns, c;

  Product(Index n_, Index depth_, Index lanes_, support::Random& random)
      : n(n_), depth(depth_), lanes(lanes_), rows_stride(depth_ + 3), columns_stride(lanes_ + 5), c_stride(lanes_ + 2) {
    const auto size = [](std::ptrdiff_t count, std::ptrdiff_t stride) {
      return static_cast<std::size_t>(count) * static_cast<std::size_t>(stride);
    };
    rows.resize(size(n, rows_stride));
    columns.resize(size(depth, columns_stride));
    c.resize(size(n, c_stride), support::poison<T>());
    random.fill(rows);
    random.fill(columns);
  }
  const T& row(Index i, Index k) const { return rows[static_cast<std::size_t>(i * rows_stride + k)]; }
  const T& column(Index k, Index j) const { return columns[static_cast<std::size_t>(k * columns_stride + j)]; }
  T& result(Index i, std::ptrdiff_t j) { return c[static_cast<std::size_t>(i * c_stride + j)]; }

  void run(const WideProduct<T>& kernel, bool add = false) {
    kernel.run({rows.data(), rows_stride, columns.data(), columns_stride, c.data(), c_stride, n, depth, add});
  }
};

template <class T> class ProductKernel : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(ProductKernel, Scalars, );

TYPED_TEST(ProductKernel, IsTheSumOfProductsAndWritesNothingElse) {
  using T = TypeParam;
  support::Random random("product kernel");
  at_every_level([&](IsaLevel level) {
    for (const auto [some_rows, some_columns] : choices) {
      const auto kernel = product_kernel<T>(level, some_rows, some_columns);
      for (const Index n : {1, 2, 3, 4, 5, 7, 8, 9, 17})
        for (const Index depth : {0, 1, 2, 33}) {
          Product<T> p(n, depth, kernel.lanes, random);
          p.run(kernel);
          support::Worst worst;
          for (Index i = 0; i < n; ++i)
            for (std::ptrdiff_t j = 0; j < p.c_stride; ++j) {
              if (j >= kernel.lanes) {
                ASSERT_EQ(support::bits(p.result(i, j)), support::bits(support::poison<T>())) << "beyond the row";
                continue;
              }
              double sum = 0, magnitude = 0;
              for (Index k = 0; k < depth; ++k) {
                const double term = double(p.row(i, k)) * double(p.column(k, static_cast<Index>(j)));
                sum += term;
                magnitude += std::abs(term);
              }
              worst.see(double(p.result(i, j)), sum, (depth + 2) * support::unit_roundoff<T>() * magnitude,
                        std::to_string(n) + " rows, depth " + std::to_string(depth));
            }
          ASSERT_LE(worst.error(), 1) << worst.text();
        }
    }
  });
}

TYPED_TEST(ProductKernel, ARowsBitsDoNotDependOnTheOthers) {
  using T = TypeParam;
  support::Random random("product rows");
  at_every_level([&](IsaLevel level) {
    for (const auto [some_rows, some_columns] : choices) {
      const auto kernel = product_kernel<T>(level, some_rows, some_columns);
      Product<T> all(19, 40, kernel.lanes, random);
      all.run(kernel);
      for (Index i = 0; i < all.n; ++i) {
        Product<T> one = all;
        one.n = 1;
        std::copy_n(all.rows.begin() + i * all.rows_stride, all.depth, one.rows.begin());
        one.run(kernel);
        for (Index j = 0; j < kernel.lanes; ++j)
          ASSERT_EQ(support::bits(one.result(0, j)), support::bits(all.result(i, j))) << "row " << i;
      }
    }
  });
}

TYPED_TEST(ProductKernel, AllKernelsGiveTheSameBits) {
  using T = TypeParam;
  support::Random random("product choice");
  at_every_level([&](IsaLevel level) {
    const auto wide = product_kernel<T>(level, 3, 100);
    Product<T> widest(12, 50, wide.lanes, random);
    widest.run(wide);
    for (const auto [some_rows, some_columns] : choices) {
      const auto kernel = product_kernel<T>(level, some_rows, some_columns);
      ASSERT_LE(kernel.lanes, wide.lanes);
      Product<T> p = widest;
      p.lanes = kernel.lanes;
      p.run(kernel);
      for (Index i = 0; i < p.n; ++i)
        for (Index j = 0; j < kernel.lanes; ++j)
          ASSERT_EQ(support::bits(p.result(i, j)), support::bits(widest.result(i, j)));
    }
  });
}

TYPED_TEST(ProductKernel, AddsTheWholeSumToWhatWasThere) {
  using T = TypeParam;
  support::Random random("product add");
  at_every_level([&](IsaLevel level) {
    const auto kernel = product_kernel<T>(level, 100, 100);
    Product<T> sums(9, 21, kernel.lanes, random);
    Product<T> added = sums;
    sums.run(kernel);
    random.fill(added.c);
    const std::vector<T> before = added.c;
    added.run(kernel, true);
    for (Index i = 0; i < sums.n; ++i)
      for (Index j = 0; j < kernel.lanes; ++j)
        ASSERT_EQ(added.result(i, j), before[static_cast<std::size_t>(i * sums.c_stride + j)] + sums.result(i, j));
  });
}

TYPED_TEST(ProductKernel, LetsNotANumberThroughInItsOwnLaneAndRowOnly) {
  using T = TypeParam;
  support::Random random("product nan");
  at_every_level([&](IsaLevel level) {
    const auto kernel = product_kernel<T>(level, 100, 100);
    Product<T> p(10, 5, kernel.lanes, random);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    p.rows[static_cast<std::size_t>(3 * p.rows_stride + 2)] = nan;
    p.columns[static_cast<std::size_t>(4 * p.columns_stride + 1)] = nan;
    p.run(kernel);
    for (Index i = 0; i < p.n; ++i)
      for (Index j = 0; j < kernel.lanes; ++j) ASSERT_EQ(std::isnan(p.result(i, j)), i == 3 || j == 1);
  });
}

TYPED_TEST(ProductKernel, IsAsWideAsItsShapeCallsFor) {
  using T = TypeParam;
  at_every_level([](IsaLevel level) {
    const Index width = mha::detail::simd::with_isa(
        level, [](auto isa) { return Index{mha::detail::simd::Vector<T, decltype(isa)>::width}; });
    EXPECT_EQ(product_kernel<T>(level, 100, width).lanes, width);
    EXPECT_GT(product_kernel<T>(level, 100, width + 1).lanes, width);
    EXPECT_EQ(product_kernel<T>(level, 4, width + 1).lanes, 6 * width);
    EXPECT_LT(product_kernel<T>(level, 5, width + 1).lanes, 6 * width);
  });
}

}  // namespace
