// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/paired_steps.hpp>

#include "integer_panels.hpp"
#include "levels.hpp"
#include "panel_steps_case.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::scaled_int4;
using namespace mha::detail::simd;

/// The two numbers of each byte of a register.
struct PairsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const scaled_int4* pairs, float* first, float* second) {
    const PairedRows<Isa> rows;
    typename Vector<float, Isa>::int_type words;
    vector_t<float, Isa> v;
    rows.load_pairs(words, pairs);
    rows.first(v, words);
    store(first, v);
    rows.second(v, words);
    store(second, v);
  }
};

TEST(PairedRows, HaveBothNumbersOfEveryByte) {
  unit::for_each_level([](auto isa) {
    using Isa = decltype(isa);
    constexpr int W = Vector<float, Isa>::width;
    constexpr float one = PairedRows<Isa>::one;
    for (int shift = 0; shift < W; ++shift)
      for (int begin = 0; begin < 256; begin += W) {
        std::vector<scaled_int4> bytes(static_cast<std::size_t>(W));
        for (int i = 0; i < W; ++i)
          bytes[static_cast<std::size_t>(i)].pair = static_cast<std::uint8_t>(begin + (i + shift) % W);
        std::vector<float> first(bytes.size()), second(bytes.size());
        const auto kernel = &Isa::template run<PairsBody, const scaled_int4*, float*, float*>;
        kernel(bytes.data(), first.data(), second.data());
        for (std::size_t i = 0; i < bytes.size(); ++i) {
          const int low = bytes[i].pair % 16, high = bytes[i].pair / 16;
          ASSERT_EQ(first[i], one * static_cast<float>(low < 8 ? low : low - 16)) << int{bytes[i].pair};
          ASSERT_EQ(second[i], one * static_cast<float>(high < 8 ? high : high - 16)) << int{bytes[i].pair};
          ASSERT_FALSE(first[i] == 0 && std::signbit(first[i]));
        }
      }
  });
}

template <int Rows> void expect_steps(support::Random& random, Index depth) {
  const unit::IntegerPanels<scaled_int4> panels(random, 2, depth);
  unit::for_each_level([&](auto isa) {
    unit::expect_steps<Rows, float, scaled_int4>(random, isa, depth, panels.at(0), panels.apart, panels.all());
  });
}

struct WidenBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const scaled_int4* panel, Index depth, float* to) {
    PanelSteps<float, scaled_int4>::widen<Isa>(panel, panel - panel_lead<scaled_int4>, depth, to);
  }
};

TEST(PairedSteps, AreThoseOfTheNumbers) {
  support::Random random("paired steps");
  for (const Index depth : {1, 2, 3, 31, 32, 33, 34, 63, 64, 65, 255, 256}) {
    expect_steps<1>(random, depth);
    expect_steps<3>(random, depth);
  }
}

TEST(PairedSteps, WithoutANumberAreNothing) {
  support::Random random("no steps");
  expect_steps<2>(random, 0);
}

// Scales from the least to the most that quantize() makes, and one that is NaN, which spoils its column alone.
TEST(PairedSteps, HaveScalesOfEverySize) {
  support::Random random("sizes of scales");
  constexpr Index columns = panel_columns<float>, depth = 32;
  unit::for_each_level([&](auto isa) {
    unit::IntegerPanels<scaled_int4> panels(random, 1, depth);
    for (Index j = 0; j < columns; ++j) {
      const double size = j < 2 ? 0 : j == 2 ? 0x1.fep124 : j == 3 ? 1e-20 / 8 : std::exp2(random.uniform(-69, 124));
      panels.put_scale(0, 0, j, static_cast<float>(j == 7 ? NAN : j % 2 == 0 ? -size : size));
    }
    std::vector<float> to(static_cast<std::size_t>(depth * columns));
    const auto kernel = &decltype(isa)::template run<WidenBody, const scaled_int4*, Index, float*>;
    kernel(panels.at(0), depth, to.data());
    for (std::size_t i = 0; i < to.size(); ++i)
      if (i % 48 == 7)
        ASSERT_TRUE(std::isnan(to[i]));
      else
        ASSERT_EQ(to[i], panels.numbers[0][i]) << i;
  });
}

}  // namespace
