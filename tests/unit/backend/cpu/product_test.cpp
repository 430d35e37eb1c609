// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/product.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TensorView;
using mha::detail::cpu::AnyColumns;
using mha::detail::cpu::copy_panel;
using mha::detail::cpu::DenseProduct;
using mha::detail::cpu::LooseColumns;
using mha::detail::cpu::panel_columns;
using mha::detail::cpu::panels_of;

template <class T> class Product : public testing::Test {};
using Scalars = testing::Types<float, double, mha::bfloat16>;
TYPED_TEST_SUITE(Product, Scalars, );

TYPED_TEST(Product, PanelsHoldTheColumnsAndZerosBeyondThem) {
  using T = TypeParam;
  constexpr Index columns = panel_columns<T>;
  support::Random random("panels");
  Tensor<T, 2> matrix(37, columns + 7);
  random.fill(matrix);
  Tensor<T, 2> turned(columns + 7, 37);
  for (Index k = 0; k < 37; ++k)
    for (Index j = 0; j < columns + 7; ++j) turned(j, k) = matrix(k, j);
  const TensorView<const T, 2> views[] = {matrix.view(), mha::transposed(turned.view())};
  EXPECT_EQ(panels_of<T>(columns + 7), 2);
  EXPECT_EQ(panels_of<T>(columns), 1);
  for (const auto& view : views)
    for (const Index p : {0, 1})
      for (const auto& [k, n] : {std::pair<Index, Index>{0, 37}, {3, 20}, {36, 1}}) {
        std::vector<T> panel(static_cast<std::size_t>(n * columns) + 1, support::poison<T>());
        copy_panel(view, p, k, n, panel.data());
        for (Index d = 0; d < n; ++d)
          for (Index j = 0; j < columns; ++j) {
            const T at = panel[static_cast<std::size_t>(d * columns + j)];
            const T expected = p * columns + j < columns + 7 ? matrix(k + d, p * columns + j) : T();
            ASSERT_EQ(support::bits(at), support::bits(expected)) << k + d << ", " << j << " of panel " << p;
          }
        EXPECT_EQ(support::bits(panel.back()), support::bits(support::poison<T>()));
      }
}

// Tasks in any order, with scratch that holds poison, write every element once.
TYPED_TEST(Product, TasksCoverTheResultWhateverTheirOrder) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  support::Random random("tasks");
  for (const Index m : {1, 8, 128, 129, 300})
    for (const Index n : {1, 48, 130, 1300})
      for (const Index workers : {1, 3}) {
        const Index k = 270;
        Tensor<T, 2> a(m, k), b(k, n), forwards(m, n), backwards(m, n);
        random.fill(a);
        random.fill(b);
        support::poison_all(forwards);
        support::poison_all(backwards);
        const LooseColumns<T> columns{b.view(), nullptr};
        for (Tensor<T, 2>* c : {&forwards, &backwards}) {
          const TensorView<T, 2> to[] = {c->view()};
          DenseProduct<T, T> product(a.view(), columns, to, mha::best_isa(), workers);
          std::vector<A> shared(product.shared(), support::poison<A>()),
              scratch(product.scratch(), support::poison<A>());
          std::vector<T> panel(product.panel_scratch(), support::poison<T>());
          product.prepare(shared.data());
          for (Index t = 0; t < product.tasks(); ++t)
            product.run(c == &forwards ? t : product.tasks() - 1 - t, scratch.data(), panel.data());
        }
        EXPECT_EQ(support::differing(forwards, backwards), 0u) << m << " x " << n;
        std::size_t untouched = 0;
        for (const T x : forwards) untouched += support::bits(x) == support::bits(support::poison<T>()) ? 1u : 0u;
        EXPECT_EQ(untouched, 0u) << m << " x " << n;
      }
}

// Rows that lie near each other are read there, others are packed before.
TYPED_TEST(Product, BitsDoNotDependOnHowTheRowsLie) {
  using T = TypeParam;
  constexpr Index depth = 300, far = 40000 / sizeof(T);
  support::Random random("rows in place");
  Tensor<T, 2> b(depth, 70);
  random.fill(b);
  for (const Index m : {1, 2, 9, 131}) {
    Tensor<T, 2> near(m, depth), apart(m, far), turned(depth, m), expected(m, 70), got(m, 70);
    random.fill(near);
    support::poison_all(apart);
    for (Index i = 0; i < m; ++i)
      for (Index k = 0; k < depth; ++k) apart(m - 1 - i, k) = turned(k, i) = near(i, k);
    const auto multiply = [&](const TensorView<const T, 2>& a, Tensor<T, 2>& c) {
      mha::Workspace workspace;
      support::poison_all(c);
      const TensorView<T, 2> to[] = {c.view()};
      const LooseColumns<T> columns{b.view(), nullptr};
      mha::detail::cpu::multiply(a, AnyColumns<T>(columns), std::span<const TensorView<T, 2>>(to), workspace,
                                 mha::Serial{});
    };
    multiply(near.view(), expected);
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < 70; ++j) {
        double sum = 0, magnitude = 0;
        for (Index k = 0; k < depth; ++k) {
          const double term = support::to_double(near(i, k)) * support::to_double(b(k, j));
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(support::to_double(expected(i, j)), sum,
                    2 * depth * support::unit_roundoff<mha::Accumulator<T>>() * magnitude +
                        1.1 * support::storage_error<T>(sum));
      }
    multiply({&apart(m - 1, 0), {m, depth}, {-std::ptrdiff_t{far}, 1}}, got);
    EXPECT_EQ(support::differing(expected, got), 0u) << m << " rows far apart, last first";
    multiply(mha::transposed(std::as_const(turned).view()), got);
    EXPECT_EQ(support::differing(expected, got), 0u) << m << " rows as columns";
  }
}

TYPED_TEST(Product, OffersTasksToEveryWorker) {
  using T = TypeParam;
  Tensor<T, 2> a(1, 8), b(8, 2000), c(1, 2000);
  const TensorView<T, 2> to[] = {c.view()};
  const LooseColumns<T> columns{b.view(), nullptr};
  for (const Index workers : {2, 5})
    EXPECT_GE((DenseProduct<T, T>(a.view(), columns, to, mha::best_isa(), workers).tasks()), workers);
}

}  // namespace
