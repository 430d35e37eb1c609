// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/panel_steps.hpp>

#include "integer_panels.hpp"
#include "levels.hpp"
#include "panel_steps_case.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using namespace mha::detail::simd;

template <class S> void expect_steps_of_numbers() {
  using A = mha::Accumulator<S>;
  support::Random random("steps");
  unit::for_each_level([&](auto isa) {
    for (const Index depth : {1, 3, 4, 5, 32, 65}) {
      const std::ptrdiff_t size = std::ptrdiff_t{depth} * panel_columns<A>;
      std::vector<S> panels(static_cast<std::size_t>(2 * size));
      random.fill(panels);
      std::vector<A> numbers(panels.size());
      for (std::size_t i = 0; i < panels.size(); ++i) numbers[i] = static_cast<A>(panels[i]);
      unit::expect_steps<1, A, S>(random, isa, depth, panels.data(), size, numbers);
      unit::expect_steps<3, A, S>(random, isa, depth, panels.data(), size, numbers);
    }
  });
}
TEST(PanelSteps, AreSumsOfProducts) {
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
      unit::expect_steps<2, float, mha::scaled_int8>(random, isa, depth, panels.at(0), panels.apart, panels.all());
    }
  });
}

TEST(PanelTiles, FitIntoTheRegisters) {
  unit::for_each_level([](auto isa) {
    using Isa = decltype(isa);
    EXPECT_LT(panel_rows<Isa> * panel_registers<Isa>, Isa::registers);
    constexpr int floats = Vector<float, Isa>::width, doubles = Vector<double, Isa>::width;
    EXPECT_EQ(panel_columns<float> % floats, 0);
    EXPECT_EQ(panel_columns<double> % doubles, 0);
  });
}

}  // namespace
