// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/panel_steps.hpp>

#include "compare.hpp"
#include "integer_panels.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using namespace mha::detail::simd;

/// A tile of two rows and two registers, and two panels side by side, of panels of S.
template <class A, class S> struct StepsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* rows, std::ptrdiff_t stride, Index depth, const S* panel,
                                    std::ptrdiff_t apart, A* tile, A* side, A* wide) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    V sum[2][2] = {}, beside[2][2] = {};
    const S* const lead = panel - panel_lead<S>;
    PanelSteps<A, S>::template add_rows<Isa>(sum, rows, stride, depth, panel, lead,
                                             reinterpret_cast<const char*>(panel), 1);
    PanelSteps<A, S>::template add_row<Isa>(beside, rows, depth, panel, lead, apart);
    PanelSteps<A, S>::template widen<Isa>(panel, lead, depth, wide);
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) {
        store(tile + (2 * i + j) * W, sum[i][j]);
        store(side + (2 * i + j) * W, beside[i][j]);
      }
  }
};

/// Against chains of fused multiply-adds of numbers (depth, columns) of two panels.
template <class A, class S, class Isa>
void expect_steps(support::Random& random, Isa, Index depth, const S* panel, std::ptrdiff_t apart,
                  const std::vector<A> (&numbers)[2]) {
  constexpr int W = Vector<A, Isa>::width;
  constexpr Index columns = panel_columns<A>;
  if constexpr (2 * W <= columns) {
    std::vector<A> rows(static_cast<std::size_t>(2 * (depth + 1)));
    random.fill(rows);
    std::vector<A> tile(std::size_t{4 * W}), side = tile, wide(static_cast<std::size_t>((depth + 1) * columns));
    support::poison_all(wide);
    const auto kernel =
        &Isa::template run<StepsBody<A, S>, const A*, std::ptrdiff_t, Index, const S*, std::ptrdiff_t, A*, A*, A*>;
    kernel(rows.data(), depth + 1, depth, panel, apart, tile.data(), side.data(), wide.data());
    const auto chain = [&](Index row, int p, int j) {
      A sum = 0;
      for (Index k = 0; k < depth; ++k)
        sum = std::fma(rows[static_cast<std::size_t>(row * (depth + 1) + k)],
                       numbers[p][static_cast<std::size_t>(k * columns + j)], sum);
      return sum;
    };
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2 * W; ++j) {
        const auto at = static_cast<std::size_t>(2 * W * i + j);
        ASSERT_EQ(support::bits(tile[at]), support::bits(chain(i, 0, j))) << "row " << i << ", depth " << depth;
        ASSERT_EQ(support::bits(side[at]), support::bits(chain(0, i, j))) << "panel " << i << ", depth " << depth;
      }
    for (std::size_t i = 0; i < wide.size(); ++i)
      ASSERT_EQ(support::bits(wide[i]),
                support::bits(i < static_cast<std::size_t>(depth * columns) ? numbers[0][i] : support::poison<A>()))
          << i;
  }
}

template <class S> void expect_steps_of_numbers() {
  using A = mha::Accumulator<S>;
  support::Random random("steps");
  unit::for_each_level([&](auto isa) {
    for (const Index depth : {1, 3, 4, 5, 32, 65}) {
      const std::ptrdiff_t size = std::ptrdiff_t{depth} * panel_columns<A>;
      std::vector<S> panels(static_cast<std::size_t>(2 * size));
      random.fill(panels);
      std::vector<A> numbers[2];
      for (std::size_t i = 0; i < panels.size(); ++i)
        numbers[i / static_cast<std::size_t>(size)].push_back(static_cast<A>(panels[i]));
      expect_steps<A, S>(random, isa, depth, panels.data(), size, numbers);
    }
  });
}
TEST(PanelSteps, AreChainsOfFusedMultiplyAdds) {
  expect_steps_of_numbers<float>();
  expect_steps_of_numbers<double>();
  expect_steps_of_numbers<mha::half>();
  expect_steps_of_numbers<mha::bfloat16>();
}

TEST(PanelSteps, OfIntegersAreThoseOfTheirNumbers) {
  support::Random random("steps of integers");
  unit::for_each_level([&](auto isa) {
    for (const Index depth : {1, 3, 4, 5, 33, 256}) {
      const unit::IntegerPanels<mha::scaled_int8> panels(random, 2, depth);
      const std::vector<float> numbers[2] = {panels.numbers[0], panels.numbers[1]};
      expect_steps<float, mha::scaled_int8>(random, isa, depth, panels.at(0), panels.apart, numbers);
    }
  });
}

TEST(PanelTiles, FitIntoTheRegisters) {
  unit::for_each_level([](auto isa) {
    using Isa = decltype(isa);
    EXPECT_LT(panel_rows<Isa> * panel_registers<Isa>, Isa::registers);
    EXPECT_EQ(panel_columns<float> % Vector<float, Isa>::width, 0);
    EXPECT_EQ(panel_columns<double> % Vector<double, Isa>::width, 0);
  });
}

}  // namespace
