// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/backward_kernels.hpp>
#include <mha/core/tensor.hpp>

#include "operands.hpp"
#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
namespace simd = mha::detail::simd;
using mha::bfloat16;
using mha::Index;
constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

template <class F> void at_every_level(F&& f) {
  const auto unit = systolic::emulated_unit(mha::SumOrder::chained);
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level)
    for (const bool lookup : {false, true}) {
      if (lookup && !systolic::has_byte_lookup()) continue;
      const auto isa = static_cast<mha::IsaLevel>(level);
      SCOPED_TRACE(testing::Message() << mha::to_string(isa) << (lookup ? " with lookup" : ""));
      f(systolic::backward_kernels({unit, unit, unit}, isa, lookup), systolic::softmax_kernels(isa, lookup));
    }
}

TEST(BackwardKernels, WeightsHaveTheBitsOfForwardsOverTheirSum) {
  constexpr Index keys = 32, lanes = 32;
  support::Random random("weights");
  std::vector<float> s(keys * lanes), level(lanes), anchor(lanes), offset(lanes), sum(lanes), block(lanes), rest(lanes),
      log2_sum(lanes, 3.f), delta(lanes);
  for (float& x : s) x = static_cast<float>(4 * random.normal());
  for (Index i = 0; i < lanes; ++i) anchor[static_cast<std::size_t>(i)] = static_cast<float>(3 * random.normal());
  anchor[5] = 40000.f;  // far
  for (Index k = 0; k < keys; ++k) s[static_cast<std::size_t>(k * lanes + 5)] += 40000.f;
  anchor[7] = -inf;
  s[3 * lanes + 9] = -inf;
  s[4 * lanes + 9] = nan;
  constexpr float slope = 1.4426950408889634f;
  for (std::size_t i = 0; i < lanes; ++i) {
    const float steps = std::nearbyint(anchor[i] * slope * 128) / 128;
    offset[i] = i == 5 ? anchor[i] * slope : i == 7 ? 0.f : steps;
    level[i] = i == 5 || i == 7 ? anchor[i] : offset[i] / slope;  // as forward records them
  }
  at_every_level([&](const systolic::BackwardKernels& kernels, const systolic::SoftmaxKernels& softmax) {
    std::vector<std::uint32_t> tiles(keys * lanes / 2);
    systolic::SoftmaxRows rows{anchor.data(), offset.data(), sum.data(), block.data(), rest.data(), lanes, slope};
    softmax.guarded_weights(s.data(), keys, tiles.data(), &rows);
    std::vector<float> p = s;
    kernels.pairs.weight_gradient(p.data(), nullptr, nullptr, keys, lanes, lanes,
                                  {level.data(), log2_sum.data(), delta.data()}, slope);
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < lanes; ++i) {
        const std::uint32_t pair = tiles[static_cast<std::size_t>(i / 16 * 256 + k / 2 * 16 + i % 16)];
        const auto weight = static_cast<float>(bfloat16::from_bits(static_cast<std::uint16_t>(pair >> (k % 2 * 16))));
        const float is = p[static_cast<std::size_t>(k * lanes + i)];
        if (std::isnan(weight))
          EXPECT_TRUE(std::isnan(is)) << k << ' ' << i;
        else
          EXPECT_EQ(is, weight / 8) << k << ' ' << i;
      }
  });
}

/// Rows 16 to 39 of an operand of 64 rows × 64 columns.
TEST(BackwardKernels, DepthTilesAreRowsInPairsWithoutWhatIsNotFinite) {
  support::Random random("depth");
  constexpr Index first = 16, count = 24, columns = 64;
  const auto rows = unit::operands(unit::Operands::any_bits, count, columns, random);
  at_every_level([&](const systolic::BackwardKernels& kernels, const auto&) {
    std::vector<std::uint32_t> tiles(2 * 2 * 2 * 256, 42);
    kernels.pack_depth(rows.data(), columns, first, count / 2, columns / 32, tiles.data(), 2 * 2 * 256);
    for (Index r = 0; r < 64; ++r)
      for (Index c = 0; c < columns; ++c) {
        const auto word =
            tiles[static_cast<std::size_t>(((c / 32 * 2 + r / 32) * 2 + c % 32 / 16) * 256 + r % 32 / 2 * 16 + c % 16)];
        const auto is = word >> (r % 2 * 16) & 0xffffu;
        if (r < first || r >= first + count) {
          EXPECT_EQ(word, 42u);
        } else {
          const auto x = rows(r - first, c);
          EXPECT_EQ(is, std::isfinite(static_cast<float>(x)) ? x.bits : 0u);
        }
      }
  });
}

TEST(BackwardKernels, FiniteSeesEveryNumber) {
  at_every_level([](const systolic::BackwardKernels& kernels, const auto&) {
    std::vector<bfloat16> x(96, bfloat16(-3e38f));
    bool finite = false;
    kernels.finite(x.data(), 96, &finite);
    EXPECT_TRUE(finite);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (const float bad : {nan, -inf}) {
        const bfloat16 before = std::exchange(x[i], bfloat16(bad));
        kernels.finite(x.data(), 96, &finite);
        EXPECT_FALSE(finite) << i;
        x[i] = before;
      }
  });
}

}  // namespace
