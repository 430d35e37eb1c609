// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/panel_steps.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace unit {

using mha::Index;

/// A tile of Rows rows and two registers, two panels side by side, and a widened panel of S.
template <int Rows, class A, class S> struct StepsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* rows, Index depth, const S* panel, std::ptrdiff_t apart, A* tile, A* side,
                                    A* wide) {
    using namespace mha::detail::simd;
    using V = vector_t<A, Isa>;
    using Steps = PanelSteps<A, S>;
    constexpr int W = Vector<A, Isa>::width;
    V sum[std::size_t{Rows}][2] = {}, beside[2][2] = {};
    const S* const lead = panel - panel_lead<S>;
    Steps::template add_rows<Isa>(sum, rows, depth + 1, depth, panel, lead, reinterpret_cast<const char*>(panel), 1);
    Steps::template add_row<Isa>(beside, rows, depth, panel, lead, apart);
    Steps::template widen<Isa>(panel, lead, depth, wide);
    for (int j = 0; j < 2; ++j) {
      for (int i = 0; i < Rows; ++i) store(tile + (2 * i + j) * W, sum[i][j]);
      for (int i = 0; i < 2; ++i) store(side + (2 * i + j) * W, beside[i][j]);
    }
  }
};

template <int Rows, class A> struct StepsResult {
  std::vector<A> tile, side, wide;

  template <class Isa, class S>
  StepsResult(Isa, const std::vector<A>& rows, Index depth, const S* panel, std::ptrdiff_t apart)
      : tile(std::size_t{2 * Rows * mha::detail::simd::Vector<A, Isa>::width}),
        side(std::size_t{4 * mha::detail::simd::Vector<A, Isa>::width}),
        wide(static_cast<std::size_t>((depth + 1) * mha::detail::simd::panel_columns<A>)) {
    support::poison_all(wide);
    const auto kernel =
        &Isa::template run<StepsBody<Rows, A, S>, const A*, Index, const S*, std::ptrdiff_t, A*, A*, A*>;
    kernel(rows.data(), depth, panel, apart, tile.data(), side.data(), wide.data());
  }
};

/// Two panels of S as the same numbers in A, (2, depth, columns), and these as loops in double.
template <int Rows, class A, class S, class Isa>
void expect_steps(support::Random& random, Isa isa, Index depth, const S* panel, std::ptrdiff_t apart,
                  const std::vector<A>& numbers) {
  constexpr Index columns = mha::detail::simd::panel_columns<A>;
  constexpr Index width = 2 * mha::detail::simd::Vector<A, Isa>::width;
  // Behind each row is a number that is NaN.
  std::vector<A> rows(static_cast<std::size_t>(std::max(Rows, 1) * (depth + 1)));
  random.fill(rows);
  const auto row = [&](Index i, Index k) -> A& { return rows[static_cast<std::size_t>(i * (depth + 1) + k)]; };
  for (Index i = 0; i < Rows; ++i) row(i, depth) = std::numeric_limits<A>::quiet_NaN();
  const StepsResult<Rows, A> got(isa, rows, depth, panel, apart),
      same(isa, rows, depth, numbers.data(), std::ptrdiff_t{depth} * columns);
  ASSERT_EQ(support::differing(got.tile, same.tile), 0u) << "rows, depth " << depth;
  ASSERT_EQ(support::differing(got.side, same.side), 0u) << "side by side, depth " << depth;
  const auto size = static_cast<std::size_t>(depth * columns);
  for (std::size_t i = 0; i < got.wide.size(); ++i)
    ASSERT_EQ(support::bits(got.wide[i]), support::bits(i < size ? numbers[i] : support::poison<A>())) << i;
  const auto expect = [&](A sum, Index i, std::size_t p, Index j) {
    double exact = 0, magnitude = 0;
    for (Index k = 0; k < depth; ++k) {
      const double term = double(row(i, k)) * double(numbers[p * size + static_cast<std::size_t>(k * columns + j)]);
      exact += term;
      magnitude += std::abs(term);
    }
    ASSERT_NEAR(double(sum), exact, (depth + 2) * 2 * support::unit_roundoff<A>() * magnitude) << i << ", " << j;
  };
  for (Index j = 0; j < width; ++j) {
    for (Index i = 0; i < Rows; ++i) expect(same.tile[static_cast<std::size_t>(i * width + j)], i, 0, j);
    for (Index p = 0; p < 2; ++p)
      expect(same.side[static_cast<std::size_t>(p * width + j)], 0, static_cast<std::size_t>(p), j);
  }
}

}  // namespace unit
