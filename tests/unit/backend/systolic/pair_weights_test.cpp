// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/backward_kernels.hpp>
#include <mha/backend/systolic/pair_weights.hpp>

#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
namespace simd = mha::detail::simd;
using mha::bfloat16;
using mha::Index;
constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
constexpr Index keys = 32, step = 40 * 32;  // numbers from 32 queries to the next 32

/// Kernels of every level as an emulation uses them, and those of every unit of this machine.
template <class F> void with_all_kernels(F&& f) {
  const auto portable = systolic::emulated_unit(mha::SumOrder::chained);
  for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level)
    for (const bool lookup : {false, true}) {
      if (lookup && !systolic::has_byte_lookup()) continue;
      SCOPED_TRACE(testing::Message() << "level " << level << (lookup ? " with lookup" : ""));
      f(systolic::backward_kernels({portable, portable, portable}, static_cast<mha::IsaLevel>(level), lookup));
    }
  for (const mha::MatrixUnit unit : systolic::all_units) {
    if (!mha::missing(unit).empty()) continue;
    SCOPED_TRACE(mha::to_string(unit));
    const auto product = systolic::product_unit(unit, mha::best_isa());
    f(systolic::backward_kernels({product, product, product}, mha::best_isa()));
  }
}

/// Memory for the operands of some lanes, the first of them query `before` of a step.
struct Operands {
  std::vector<bfloat16> p, ds;
  std::vector<std::uint32_t> tiles;
  Index before;

  Operands(Index lanes, Index first)
      : p(3 * step), ds(p), tiles(static_cast<std::size_t>(keys * lanes / 2)), before(first) {}
  systolic::PairOperands to() { return {p.data(), ds.data(), step, before, tiles.data()}; }
  std::size_t at(Index k, Index lane) const {
    return static_cast<std::size_t>((before + lane) / 32 * step + k * 32 + (before + lane) % 32);
  }
  std::uint32_t in_tiles(Index k, Index lane) const {
    return tiles[static_cast<std::size_t>(lane / 16 * 256 + k / 2 * 16 + lane % 16)] >> (k % 2 * 16) & 0xffffu;
  }
};

TEST(PairWeights, PairsAreRoundedToNearestEvenInBothShapes) {
  constexpr Index lanes = 48;
  support::Random random("round");
  std::vector<float> p(keys * lanes), ds(keys * lanes);
  for (auto* t : {&p, &ds})
    for (float& x : *t) x = static_cast<float>(random.normal());
  p[7] = nan;
  with_all_kernels([&](const systolic::BackwardKernels& kernels) {
    Operands is(lanes, 16);
    kernels.round({p.data(), ds.data(), lanes, is.to()});
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < lanes; ++i) {
        const auto at = static_cast<std::size_t>(k * lanes + i);
        EXPECT_EQ(is.p[is.at(k, i)].bits, bfloat16(p[at]).bits);
        EXPECT_EQ(is.ds[is.at(k, i)].bits, bfloat16(ds[at]).bits);
        EXPECT_EQ(is.in_tiles(k, i), bfloat16(ds[at]).bits);
      }
    Operands without(lanes, 16);
    kernels.round({p.data(), nullptr, lanes, without.to()});
    EXPECT_TRUE(std::all_of(without.ds.begin(), without.ds.end(), [](bfloat16 x) { return x.bits == 0; }));
    EXPECT_TRUE(std::all_of(without.tiles.begin(), without.tiles.end(), [](std::uint32_t x) { return x == 0; }));
  });
}

/// Weights in one go are those of simd::WeightGradientBody, rounded; a unit that computes products meanwhile leaves the
/// bits of those computed by themselves.
TEST(PairWeights, InOneGoHaveTheBitsOfOneAfterTheOther) {
  support::Random random("one go");
  with_all_kernels([&](const systolic::BackwardKernels& kernels) {
    const Index lanes = kernels.product.lanes;
    const auto all = static_cast<std::size_t>(keys * lanes), row = static_cast<std::size_t>(lanes);
    std::vector<float> s(all), dp(all), level(row), log2_sum(row, 3.f), delta(row), prepared(3 * row);
    for (auto* t : {&s, &dp, &level, &delta})
      for (float& x : *t) x = static_cast<float>(3 * random.normal());
    level[5] = 40000.f;  // far
    for (Index k = 0; k < keys; ++k) s[static_cast<std::size_t>(k * lanes) + 5] += 40000.f;
    level[7] = -inf;
    s[9] = -inf;
    s[row + 10] = nan;
    const simd::BackwardRows<float> rows{level.data(), log2_sum.data(), delta.data()};
    constexpr float slope = 1.4426950408889634f;

    Operands expected(lanes, 0);
    auto p = s, ds = dp;
    kernels.pairs.weight_gradient(p.data(), ds.data(), nullptr, keys, lanes, lanes, rows, slope);
    kernels.round({p.data(), ds.data(), lanes, expected.to()});

    std::vector<bfloat16> a(5 * systolic::tile_size);
    std::vector<std::uint32_t> b(static_cast<std::size_t>(2 * lanes) * 16);
    for (bfloat16& x : a) x = bfloat16(static_cast<float>(random.normal()));
    for (std::uint32_t& x : b) x = bfloat16(static_cast<float>(random.normal())).bits | std::uint32_t{0x3f80} << 16;
    std::vector<float> sums(48 * row, 1.f), alone = sums, others(32 * row), others_alone = others;
    const auto products = [&](float* first, float* second) {
      return std::vector<systolic::TileProduct>{{a.data(), 512, b.data(), first, 3, 2, true},
                                                {a.data(), 512, b.data(), second, 2, 1, false}};
    };
    for (const auto& product : products(alone.data(), others_alone.data())) {
      const systolic::UnitScope scope(kernels.product.unit);
      kernels.product.multiply(product);
    }
    Operands is(lanes, 0);
    kernels.prepare_lanes(rows, lanes, slope, prepared.data());
    {
      const systolic::UnitScope scope(kernels.product.unit);
      const auto waiting = products(sums.data(), others.data());
      kernels.weigh({s.data(), dp.data(), lanes, prepared.data(), delta.data(), slope, is.to()}, waiting.data(),
                    kernels.interleaves ? static_cast<Index>(waiting.size()) : 0);
    }
    if (kernels.interleaves) {
      EXPECT_EQ(sums, alone);
      EXPECT_EQ(others, others_alone);
    }
    for (Index k = 0; k < keys; ++k)
      for (Index i = 0; i < lanes; ++i) {
        EXPECT_EQ(is.p[is.at(k, i)].bits, expected.p[is.at(k, i)].bits) << k << ' ' << i;
        EXPECT_EQ(is.ds[is.at(k, i)].bits, expected.ds[is.at(k, i)].bits) << k << ' ' << i;
        EXPECT_EQ(is.in_tiles(k, i), expected.in_tiles(k, i)) << k << ' ' << i;
      }
  });
}

}  // namespace
