// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/panel_kernel.hpp>

#include "compare.hpp"
#include "integer_panels.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::detail::simd::depth_block;
using mha::detail::simd::panel_columns;
using mha::detail::simd::panel_grain;
using mha::detail::simd::panel_kernel;
using unit::IntegerPanels;

/// Rows, a panel of storage S, and results with poison beside them.
template <class S> struct Product {
  using A = mha::Accumulator<S>;
  static constexpr Index columns = panel_columns<A>, c_stride = columns + 5, rows_stride = 261;
  Index n, depth;
  std::vector<A> rows, bias, c;
  std::vector<S> panel;

  Product(Index n_, Index depth_, support::Random& random)
      : n(n_),
        depth(depth_),
        rows(static_cast<std::size_t>(n) * rows_stride, std::numeric_limits<A>::quiet_NaN()),
        bias(static_cast<std::size_t>(columns)),
        c(static_cast<std::size_t>(n * c_stride), support::poison<A>()),
        panel(static_cast<std::size_t>(depth * columns)) {
    for (Index i = 0; i < n; ++i)
      for (Index k = 0; k < depth; ++k) row(i, k) = static_cast<A>(random.normal());
    random.fill(bias);
    random.fill(panel);
  }
  A& row(Index i, Index k) { return rows[static_cast<std::size_t>(i * rows_stride + k)]; }
  S& weight(Index k, Index j) { return panel[static_cast<std::size_t>(k * columns + j)]; }
  A& result(Index i, Index j) { return c[static_cast<std::size_t>(i * c_stride + j)]; }

  template <class Isa> void run(Isa, Index wanted = columns, bool with_bias = false) {
    panel_kernel<A, S>(Isa::level)({rows.data(), rows_stride, panel.data(), panel.data(),
                                    with_bias ? bias.data() : nullptr, 0, c.data(), c_stride, n, depth, wanted});
  }
};

template <class T> class PanelKernel : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(PanelKernel, Scalars, );

TYPED_TEST(PanelKernel, IsTheSumOfProductsAndWritesWholeGrainsOnly) {
  using A = mha::Accumulator<TypeParam>;
  support::Random random("panel kernel");
  unit::for_each_level([&](auto isa) {
    const Index grain = panel_grain<A>(isa.level);
    for (const Index n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 97})
      for (const Index depth : {1, 2, 33, 256})
        for (const bool with_bias : {false, true}) {
          Product<TypeParam> p(n, depth, random);
          const Index wanted = 1 + random.below(p.columns), written = (wanted + grain - 1) / grain * grain;
          p.run(isa, wanted, with_bias);
          support::Worst worst;
          for (Index i = 0; i < n; ++i)
            for (Index j = 0; j < p.c_stride; ++j) {
              if (j >= written) {
                ASSERT_EQ(support::bits(p.result(i, j)), support::bits(support::poison<A>())) << "beyond the registers";
                continue;
              }
              double sum = with_bias ? double(p.bias[static_cast<std::size_t>(j)]) : 0, magnitude = std::abs(sum);
              for (Index k = 0; k < depth; ++k) {
                const double term = double(p.row(i, k)) * support::to_double(p.weight(k, j));
                sum += term;
                magnitude += std::abs(term);
              }
              worst.see(double(p.result(i, j)), sum, (depth + 2) * support::unit_roundoff<A>() * magnitude,
                        std::to_string(n) + " rows, depth " + std::to_string(depth));
            }
          ASSERT_LE(worst.error(), 1) << worst.text();
        }
  });
}

TYPED_TEST(PanelKernel, ARowsBitsDoNotDependOnTheOthersNorOnTheColumnsWanted) {
  support::Random random("panel rows");
  unit::for_each_level([&](auto isa) {
    for (const Index n : {2, 7, 8, 19, 97}) {  // the last: few prefetches for each tile
      Product<TypeParam> all(n, 103, random);
      all.run(isa, all.columns, true);
      for (Index i = 0; i < n; ++i) {
        Product<TypeParam> one = all;
        one.n = 1;
        std::copy_n(all.rows.begin() + i * all.rows_stride, all.depth, one.rows.begin());
        const Index wanted = 1 + random.below(all.columns);
        one.run(isa, wanted, true);
        for (Index j = 0; j < wanted; ++j)
          ASSERT_EQ(support::bits(one.result(0, j)), support::bits(all.result(i, j))) << "row " << i << " of " << n;
      }
    }
  });
}

// One row meets whole panels side by side: each gives the bits that it gives alone.
TYPED_TEST(PanelKernel, PanelsSideBySideGiveTheBitsOfEachAlone) {
  using A = mha::Accumulator<TypeParam>;
  constexpr Index columns = panel_columns<A>, panels = mha::detail::simd::row_panels;
  support::Random random("panels side by side");
  unit::for_each_level([&](auto isa) {
    const auto kernel = panel_kernel<A, TypeParam>(decltype(isa)::level);
    for (const Index depth : {1, 33, 256})
      for (const bool with_bias : {false, true}) {
        const std::ptrdiff_t apart = (depth + 3) * columns;
        std::vector<A> row(static_cast<std::size_t>(depth)), bias(static_cast<std::size_t>(panels * columns));
        std::vector<TypeParam> memory(static_cast<std::size_t>(panels * apart));
        random.fill(row);
        random.fill(bias);
        random.fill(memory);
        std::vector<A> c(static_cast<std::size_t>((panels + 1) * columns), support::poison<A>());
        kernel({row.data(), depth, memory.data(), memory.data(), with_bias ? bias.data() : nullptr, 0, c.data(), 0, 1,
                depth, columns, apart});
        for (Index i = 0; i <= panels; ++i) {
          std::vector<A> alone(static_cast<std::size_t>(columns), support::poison<A>());
          if (i < panels)
            kernel({row.data(), depth, memory.data() + i * apart, memory.data(),
                    with_bias ? bias.data() + i * columns : nullptr, 0, alone.data(), columns, 1, depth, columns});
          for (Index j = 0; j < columns; ++j)
            ASSERT_EQ(support::bits(c[static_cast<std::size_t>(i * columns + j)]),
                      support::bits(alone[static_cast<std::size_t>(j)]))
                << "panel " << i << ", column " << j << ", depth " << depth;
        }
      }
  });
}

TYPED_TEST(PanelKernel, AddsTheWholeSumToWhatWasThere) {
  using A = mha::Accumulator<TypeParam>;
  support::Random random("panel add");
  unit::for_each_level([&](auto isa) {
    Product<TypeParam> sums(9, 21, random);
    Product<TypeParam> added = sums;
    sums.run(isa);
    random.fill(added.c);
    const std::vector<A> before = added.c;
    panel_kernel<A, TypeParam>(decltype(isa)::level)({added.rows.data(), added.rows_stride, added.panel.data(),
                                                      added.panel.data(), added.c.data(), added.c_stride,
                                                      added.c.data(), added.c_stride, 9, 21, added.columns});
    for (Index i = 0; i < 9; ++i)
      for (Index j = 0; j < added.columns; ++j)
        ASSERT_EQ(added.result(i, j), before[static_cast<std::size_t>(i * added.c_stride + j)] + sums.result(i, j));
  });
}

TYPED_TEST(PanelKernel, LetsNotANumberThroughInItsOwnColumnAndRowOnly) {
  using A = mha::Accumulator<TypeParam>;
  support::Random random("panel nan");
  unit::for_each_level([&](auto isa) {
    Product<TypeParam> p(10, 5, random);
    p.row(3, 2) = std::numeric_limits<A>::quiet_NaN();
    p.weight(4, 1) = TypeParam(std::numeric_limits<A>::quiet_NaN());
    p.weight(4, 2) = TypeParam(std::numeric_limits<A>::infinity());
    p.run(isa);
    for (Index i = 0; i < p.n; ++i) {
      for (Index j = 0; j < p.columns; ++j) ASSERT_EQ(std::isnan(p.result(i, j)), i == 3 || j == 1);
      ASSERT_TRUE(i == 3 || std::isinf(p.result(i, 2)));
    }
  });
}

// Every number of 16 bits times one is itself.
template <class S> void expect_every_number_widened() {
  support::Random random("panel widening");
  unit::for_each_level([&](auto isa) {
    for (unsigned first = 0; first < 65536; first += panel_columns<float>) {
      Product<S> p(1, 1, random);
      p.row(0, 0) = 1;
      for (Index j = 0; j < p.columns; ++j)
        p.weight(0, j) = S::from_bits(static_cast<std::uint16_t>(first + static_cast<unsigned>(j)));
      p.run(isa);
      for (Index j = 0; j < p.columns; ++j) {
        const float wide = float(p.weight(0, j));
        if (std::isnan(wide))
          ASSERT_TRUE(std::isnan(p.result(0, j))) << p.weight(0, j).bits;
        else
          ASSERT_EQ(p.result(0, j), wide) << p.weight(0, j).bits;
      }
    }
  });
}
TEST(PanelKernelWidening, IsExactForEveryNumberOfSixteenBits) {
  expect_every_number_widened<mha::half>();
  expect_every_number_widened<mha::bfloat16>();
}

// Rows by integers and by the numbers that they are.
template <class Q> void expect_the_bits_of_numbers() {
  support::Random random("panels of integers");
  constexpr Index columns = panel_columns<float>;
  unit::for_each_level([&](auto isa) {
    const auto kernel = panel_kernel<float, Q>(decltype(isa)::level);
    const auto same = panel_kernel<float, float>(decltype(isa)::level);
    for (Index n = 1; n <= 40; ++n)
      for (const Index depth : {1, 2, 31, 32, 33, 63, 255, 256}) {
        const IntegerPanels<Q> panel(random, 1, depth);
        // What is behind a row's numbers is not read: it would make results NaN.
        const Index stride = depth + random.below(3);
        std::vector<float> rows(static_cast<std::size_t>(n * stride)), bias(static_cast<std::size_t>(columns));
        support::poison_all(rows);
        for (Index i = 0; i < n; ++i)
          for (Index k = 0; k < depth; ++k)
            rows[static_cast<std::size_t>(i * stride + k)] = static_cast<float>(random.normal());
        random.fill(bias);
        const Index wanted = 1 + random.below(columns);
        std::vector<float> c(static_cast<std::size_t>(n * columns), support::poison<float>()), expected = c;
        const float* const before = random.chance(0.5) ? bias.data() : nullptr;
        kernel({rows.data(), stride, panel.at(0), panel.at(0), before, 0, c.data(), columns, n, depth, wanted});
        same({rows.data(), stride, panel.numbers[0].data(), panel.numbers[0].data(), before, 0, expected.data(),
              columns, n, depth, wanted});
        ASSERT_EQ(support::differing(c, expected), 0u) << n << " rows, depth " << depth << ", columns " << wanted;
      }
  });
}
TEST(PanelKernelOfEightBits, HasTheBitsOfTheNumbersInFloat) { expect_the_bits_of_numbers<mha::scaled_int8>(); }
TEST(PanelKernelOfFourBits, HasTheBitsOfTheNumbersInFloat) { expect_the_bits_of_numbers<mha::scaled_int4>(); }

template <class Q> void expect_the_bits_of_each_alone() {
  support::Random random("panels of integers side by side");
  constexpr Index columns = panel_columns<float>, panels = mha::detail::simd::row_panels;
  unit::for_each_level([&](auto isa) {
    const auto same = panel_kernel<float, float>(decltype(isa)::level);
    for (const Index depth : {1, 31, 32, 33, 255, 256})
      for (const bool with_bias : {false, true}) {
        const IntegerPanels<Q> panel(random, panels, depth);
        std::vector<float> row(static_cast<std::size_t>(depth + 1)), bias(static_cast<std::size_t>(panels * columns));
        random.fill(row);
        random.fill(bias);
        row.back() = std::numeric_limits<float>::quiet_NaN();  // behind the row
        std::vector<float> c(static_cast<std::size_t>((panels + 1) * columns), support::poison<float>()), expected = c;
        panel_kernel<float, Q>(decltype(isa)::level)({row.data(), depth, panel.at(0), panel.at(0),
                                                      with_bias ? bias.data() : nullptr, 0, c.data(), 0, 1, depth,
                                                      columns, panel.apart});
        for (Index i = 0; i < panels; ++i) {
          const auto& numbers = panel.numbers[static_cast<std::size_t>(i)];
          same({row.data(), depth, numbers.data(), numbers.data(), with_bias ? bias.data() + i * columns : nullptr, 0,
                expected.data() + i * columns, columns, 1, depth, columns});
        }
        ASSERT_EQ(support::differing(c, expected), 0u) << "depth " << depth;
      }
  });
}
TEST(PanelKernelOfEightBits, PanelsSideBySideGiveTheBitsOfEachAlone) {
  expect_the_bits_of_each_alone<mha::scaled_int8>();
}
TEST(PanelKernelOfFourBits, PanelsSideBySideGiveTheBitsOfEachAlone) {
  expect_the_bits_of_each_alone<mha::scaled_int4>();
}

// The last row of a pair may be missing, and then its half of the bytes is no number.
TEST(PanelKernelOfFourBits, AnInfinityInTheLastOfOddRowsStaysOne) {
  support::Random random("infinite in 4 bits");
  constexpr Index columns = panel_columns<float>, panels = mha::detail::simd::row_panels;
  constexpr float inf = std::numeric_limits<float>::infinity();
  unit::for_each_level([&](auto isa) {
    const auto kernel = panel_kernel<float, mha::scaled_int4>(decltype(isa)::level);
    for (const Index depth : {1, 31, 33, 255})
      for (const Index n : {0, 1, 2, 6, 9}) {  // 0: panels side by side
        IntegerPanels<mha::scaled_int4> panel(random, panels, depth);
        for (Index p = 0; p < panels; ++p)
          for (Index j = 0; j < columns; ++j) panel.put(p, depth - 1, j, j % 2 == 0 ? 1 : -8);
        std::vector<float> rows(static_cast<std::size_t>(std::max(n, Index{1}) * depth), 1.0f);
        for (std::size_t i = static_cast<std::size_t>(depth) - 1; i < rows.size(); i += static_cast<std::size_t>(depth))
          rows[i] = inf;
        std::vector<float> c(static_cast<std::size_t>((n == 0 ? panels : n) * columns));
        kernel({rows.data(), depth, panel.at(0), panel.at(0), nullptr, 0, c.data(), columns, std::max(n, Index{1}),
                depth, columns, n == 0 ? panel.apart : 0});
        for (std::size_t i = 0; i < c.size(); ++i)
          ASSERT_EQ(c[i], (panel.negative(n == 0 ? static_cast<Index>(i) / columns : 0, depth - 1,
                                          static_cast<Index>(i) % columns)
                               ? -inf
                               : inf))
              << depth << " deep, " << n << " rows, " << i;
      }
  });
}

template <class Q> void expect_widened() {
  support::Random random("widened panels");
  constexpr Index columns = panel_columns<float>, group = mha::detail::simd::panel_group<Q>;
  unit::for_each_level([&](auto isa) {
    const IntegerPanels<Q> panel(random, 1, 256);
    const auto at = [&](Index row) { return panel.memory.data() + mha::detail::simd::panel_row_at<Q>(row); };
    const auto lead = [&](Index row) { return at(row / group * group) - mha::detail::simd::panel_lead<Q>; };
    for (const Index first : {0, 32, 64, 224})  // a later row has the scales of its group
      for (const Index depth : {0, 1, 2, 31, 32, 33, 63, 255, 256}) {
        if (first + depth > 256 || (first > 0 && depth > 32)) continue;
        std::vector<float> to(static_cast<std::size_t>((depth + 1) * columns), support::poison<float>());
        mha::detail::simd::widen_panel(decltype(isa)::level, at(first), lead(first), depth, to.data());
        for (std::size_t i = 0; i < to.size(); ++i)
          ASSERT_EQ(support::bits(to[i]),
                    support::bits(i < static_cast<std::size_t>(depth * columns)
                                      ? panel.numbers[0][static_cast<std::size_t>(first * columns) + i]
                                      : support::poison<float>()))
              << i << ", rows " << depth << " from " << first;
      }
  });
}
TEST(WidenPanel, WritesTheNumbersOfItsRowsAlone) {
  expect_widened<mha::scaled_int8>();
  expect_widened<mha::scaled_int4>();
}

TEST(WidenPanel, OfSixteenBitsIsExact) {
  support::Random random("widened panels of 16 bits");
  constexpr Index columns = panel_columns<float>;
  unit::for_each_level([&](auto isa) {
    std::vector<mha::half> narrow(static_cast<std::size_t>(2 * columns));
    std::vector<float> to(narrow.size());
    random.fill(narrow);
    mha::detail::simd::widen_panel(decltype(isa)::level, narrow.data(), narrow.data(), 2, to.data());
    for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], float(narrow[i]));
  });
}

}  // namespace
