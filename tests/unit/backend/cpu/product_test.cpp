// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/product.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::IsaLevel;
using mha::TensorView;
using mha::detail::cpu::DenseProduct;

template <class F> void at_every_level(F&& f) {
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
    SCOPED_TRACE(mha::to_string(static_cast<IsaLevel>(level)));
    f(static_cast<IsaLevel>(level));
  }
}

/// A matrix with room beside its rows, or beside its columns if it is stored transposed. What lies there is poison.
template <class T> struct Matrix {
  std::vector<T> memory;
  TensorView<T, 2> view;

  Matrix(Index rows, Index columns, bool transposed = false, Index room = 0) {
    const Index inner = transposed ? rows : columns, outer = transposed ? columns : rows;
    const std::ptrdiff_t stride = std::ptrdiff_t{inner} + room;
    memory.assign(static_cast<std::size_t>(stride) * static_cast<std::size_t>(outer), support::poison<T>());
    view = {memory.data(), {rows, columns}, {stride, 1}};
    if (transposed) view = {memory.data(), {rows, columns}, {1, stride}};
  }
  Matrix(const Matrix&) = delete;

  template <class F> void fill(F&& f) {
    for (Index i = 0; i < view.extent[0]; ++i)
      for (Index j = 0; j < view.extent[1]; ++j) view(i, j) = f(i, j);
  }
  std::size_t poisoned() const {
    std::size_t n = 0;
    for (const T x : memory) n += support::bits(x) == support::bits(support::poison<T>()) ? 1u : 0u;
    return n;
  }
};

template <class T>
void multiply(const TensorView<T, 2>& a, const TensorView<T, 2>& b, const TensorView<T, 2>& c, IsaLevel level,
              bool add = false) {
  const DenseProduct<T> product(a, b, c, level, add);
  std::vector<T> scratch(product.scratch(), support::poison<T>());
  for (Index part = product.parts() - 1; part >= 0; --part) product.run(part, scratch.data());
}

template <class T> class Product : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Product, Scalars, );

struct Shape {
  Index m, n, k;
};
constexpr Shape shapes[] = {{1, 1, 1},   {2, 3, 5},    {4, 50, 7},   {5, 50, 7},    {17, 1, 9},     {3, 257, 31},
                            {70, 33, 8}, {129, 97, 3}, {65, 64, 65}, {7, 130, 600}, {131, 20, 513}, {2, 2, 257}};

TYPED_TEST(Product, IsTheSumOfProductsWhateverTheLayout) {
  using T = TypeParam;
  support::Random random("dense product");
  const auto draw = [&](Index, Index) { return static_cast<T>(random.normal()); };
  at_every_level([&](IsaLevel level) {
    for (const auto& [m, n, k] : shapes)
      for (const bool transposed : {false, true})
        for (const Index room : {0, 3}) {
          Matrix<T> a(m, k, false, room), b(k, n, transposed, room), c(m, n, false, room);
          a.fill(draw);
          b.fill(draw);
          multiply(a.view, b.view, c.view, level);
          support::Worst worst;
          for (Index i = 0; i < m; ++i)
            for (Index j = 0; j < n; ++j) {
              double sum = 0, magnitude = 0;
              for (Index d = 0; d < k; ++d) {
                const double term = double(a.view(i, d)) * double(b.view(d, j));
                sum += term;
                magnitude += std::abs(term);
              }
              worst.see(double(c.view(i, j)), sum, (k + 4) * support::unit_roundoff<T>() * magnitude,
                        "element " + std::to_string(i) + ", " + std::to_string(j));
            }
          ASSERT_LE(worst.error(), 1) << m << " x " << n << " x " << k << ", transposed " << transposed << ", room "
                                      << room << ", " << worst.text();
          ASSERT_EQ(c.poisoned(), static_cast<std::size_t>(m) * static_cast<std::size_t>(room)) << "beside the rows";
        }
  });
}

TYPED_TEST(Product, LayoutsAndNumbersOfRowsChangeNoBits) {
  using T = TypeParam;
  support::Random random("dense bits");
  const auto draw = [&](Index, Index) { return static_cast<T>(random.normal()); };
  at_every_level([&](IsaLevel level) {
    for (const Index n : {5, 150})
      for (const Index k : {40, 300}) {
        const Index m = 67;
        Matrix<T> a(m, k), b(k, n), bt(k, n, true, 2), all(m, n);
        a.fill(draw);
        b.fill(draw);
        bt.fill([&](Index i, Index j) { return b.view(i, j); });
        multiply(a.view, b.view, all.view, level);
        for (const Index rows : {1, 2, 3, 4, 5, 16, 64, 67})
          for (const Index first : {Index{0}, Index{m - rows}})
            for (const bool transposed : {false, true}) {
              Matrix<T> some(rows, n);
              TensorView<T, 2> part = a.view;
              part.data += first * part.stride[0];
              part.extent[0] = rows;
              multiply(part, transposed ? bt.view : b.view, some.view, level);
              std::size_t different = 0;
              for (Index i = 0; i < rows; ++i)
                for (Index j = 0; j < n; ++j)
                  different += support::bits(some.view(i, j)) != support::bits(all.view(first + i, j)) ? 1u : 0u;
              ASSERT_EQ(different, 0u) << rows << " rows from " << first << ", transposed " << transposed;
            }
      }
  });
}

TYPED_TEST(Product, AddsToWhatIsThere) {
  using T = TypeParam;
  support::Random random("dense add");
  const auto whole = [&](Index, Index) { return static_cast<T>(random.below(9) - 4); };  // sums of these are exact
  at_every_level([&](IsaLevel level) {
    for (const bool transposed : {false, true})
      for (const Index k : {0, 3, 270}) {
        Matrix<T> a(9, k), b(k, 35, transposed), c(9, 35), before(9, 35);
        a.fill(whole);
        b.fill(whole);
        before.fill(whole);
        c.fill([&](Index i, Index j) { return before.view(i, j); });
        multiply(a.view, b.view, c.view, level, true);
        for (Index i = 0; i < 9; ++i)
          for (Index j = 0; j < 35; ++j) {
            T sum = before.view(i, j);
            for (Index d = 0; d < k; ++d) sum += a.view(i, d) * b.view(d, j);
            ASSERT_EQ(c.view(i, j), sum) << "depth " << k << ", transposed " << transposed;
          }
      }
  });
}

TYPED_TEST(Product, PartsCoverTheResultOnce) {
  using T = TypeParam;
  at_every_level([](IsaLevel level) {
    Matrix<T> a(30, 4), b(4, 200), c(30, 200);
    a.fill([](Index, Index) { return T(1); });
    b.fill([](Index, Index) { return T(1); });
    const DenseProduct<T> product(a.view, b.view, c.view, level, false);
    std::vector<T> scratch(product.scratch());
    ASSERT_GT(product.parts(), 1);
    std::size_t written = 0;
    for (Index part = 0; part < product.parts(); ++part) {
      product.run(part, scratch.data());
      const std::size_t now = c.memory.size() - c.poisoned();
      EXPECT_GT(now, written);
      written = now;
    }
    EXPECT_EQ(written, c.memory.size());
  });
}

}  // namespace
