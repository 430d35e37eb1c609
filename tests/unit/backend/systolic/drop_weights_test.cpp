// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/drop_weights.hpp>

#include "../simd/levels.hpp"
#include "random.hpp"

namespace {

using mha::Index;
namespace simd = mha::detail::simd;
namespace systolic = mha::detail::systolic;

TEST(DropWeights, ClearsTheWeightsOfDroppedPairsAndNoOthers) {
  support::Random random("drop weights");
  unit::for_each_level([&](auto isa) {
    using Isa = decltype(isa);
    for (const Index lanes : {16, 48, 64}) {
      const auto seed = static_cast<std::uint64_t>(random.engine()());
      const mha::DropoutDraws draws = mha::detail::dropout_draws(random.uniform(0.2, 0.8), mha::DropoutSeed{seed, 3});
      const Index first = systolic::tile_depth * random.below(100);
      simd::DroppingLanes of;
      for (Index i = 0; i < lanes; ++i) {
        of.position[i] = static_cast<std::uint32_t>(random.engine()());
        of.row[i] = static_cast<std::uint32_t>(random.engine()());
      }
      const std::size_t words = static_cast<std::size_t>(lanes / systolic::tile_side * systolic::tile_words);
      std::vector<std::uint32_t> weights(words + 16);  // none beyond the last tile is written
      for (std::uint32_t& w : weights) w = static_cast<std::uint32_t>(random.engine()()) | 0x00010001u;
      std::vector<std::uint32_t> expected = weights;
      for (Index lane = 0; lane < lanes; ++lane)
        for (Index k = 0; k < systolic::tile_depth; ++k)
          if (draws.factor(of.row[lane], static_cast<Index>(of.position[lane]), first + k) == 0) {
            const Index tile = lane / systolic::tile_side * systolic::tile_words;
            const Index at = tile + k / 2 * systolic::tile_side + lane % systolic::tile_side;
            expected[static_cast<std::size_t>(at)] &= k % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
          }
      Isa::template run<systolic::DropWeightsBody>(weights.data(), lanes, first, of.of(draws));
      EXPECT_EQ(weights, expected) << lanes << " lanes";
    }
  });
}

}  // namespace
