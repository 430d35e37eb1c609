// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/held_mask.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/policy/mask/positional.hpp>

#include "kv_copies.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::TileVisibility;

/// A sequence of 20 positions in a ring of 9 rows, of which the first 2 positions stay: 2 … 12 are gone.
class HeldMask : public testing::Test {
 protected:
  mha::Tensor<float, 4> rows{1, 20, 1, 2};
  support::RingCopy<float> ring{rows.view(), rows.view(), std::vector<Index>{20}, 9, 2};
};

TEST_F(HeldMask, HidesWhatTheMaskHidesAndWhatIsGone) {
  const auto mask = mha::detail::mask_of_held(mha::Causal{}, ring.source());
  for (Index q = 0; q < 20; ++q)
    for (Index k = 0; k < 20; ++k) EXPECT_EQ(mask(0, 0, q, k), k <= q && ring.holds(0, k)) << q << ", " << k;
}

TEST_F(HeldMask, TellsOfTilesWhatItsPairsAre) {
  const auto mask = mha::detail::mask_of_held(mha::Causal{}, ring.source());
  for (Index first = 0; first < 20; ++first)
    for (Index begin = 0; begin < 20; ++begin)
      for (Index end = begin + 1; end <= 20; ++end) {
        bool any = false, all = true;
        for (Index q = first; q < 20; ++q)
          for (Index k = begin; k < end; ++k) {
            any = any || mask(0, 0, q, k);
            all = all && mask(0, 0, q, k);
          }
        const TileVisibility told = mha::tile(mask, 0, 0, first, 20, begin, end);
        EXPECT_FALSE(told == TileVisibility::none && any) << first << ", " << begin << " to " << end;
        EXPECT_TRUE(told != TileVisibility::full || all) << first << ", " << begin << " to " << end;
      }
  EXPECT_EQ(mha::tile(mask, 0, 0, 19, 20, 3, 13), TileVisibility::none);
  EXPECT_EQ(mha::tile(mask, 0, 0, 19, 20, 13, 20), TileVisibility::full);
  EXPECT_EQ(mha::tile(mask, 0, 0, 19, 20, 0, 2), TileVisibility::full);
  EXPECT_EQ(mha::tile(mask, 0, 0, 19, 20, 0, 3), TileVisibility::partial);
}

TEST_F(HeldMask, IsTheMaskWhereNothingIsDropped) {
  const mha::ContiguousKv<float> all{rows.view(), rows.view()};
  static_assert(std::is_same_v<decltype(mha::detail::mask_of_held(mha::Causal{}, all)), mha::Causal>);
}

}  // namespace
