// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/tiles.hpp>
#include <mha/policy/mask/positional.hpp>

#include "random.hpp"

namespace {

using namespace mha;
using cuda::KeyTile;
using cuda::KeyTiles;
using cuda::Lanes;
using cuda::SharedPanels;
using cuda::SharedRows;

template <int Columns> void check_rows() {
  using Rows = SharedRows<Columns>;
  std::set<int> places;
  for (int row = 0; row < 32; ++row)
    for (int c = 0; c < Rows::chunks; ++c) {
      const int at = Rows::address(1024, row, c);
      EXPECT_EQ(at % 16, 0);
      EXPECT_GE(at, 1024 + row * Rows::bytes);
      EXPECT_LT(at, 1024 + (row + 1) * Rows::bytes);
      EXPECT_TRUE(places.insert(at).second) << "row " << row << " chunk " << c;
      for (int x = 0; c + x < Rows::chunks; ++x)
        if ((c < 2 && x % 2 == 0) || x % Rows::group == 0) {
          EXPECT_EQ(Rows::beside(at, x), Rows::address(1024, row, c + x)) << row << " " << c << " " << x;
        }
    }
  for (int first = 0; first < 32; first += 8)  // ldmatrix reads eight rows at once: the banks repeat after 128 bytes
    for (int c = 0; c < Rows::chunks; ++c) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(Rows::address(0, row, c) % 128);
      EXPECT_EQ(banks.size(), 8u) << Columns << " columns, chunk " << c;
    }
}

TEST(SharedRows, PermuteChunksWithoutBankConflicts) {
  check_rows<32>();
  check_rows<64>();
  check_rows<96>();
  check_rows<128>();
  check_rows<192>();
  check_rows<256>();
}

template <int Columns, int Rows> void check_panels() {
  using Panels = SharedPanels<Columns, Rows>;
  EXPECT_EQ(Panels::all_bytes, Rows * Columns * 2);
  std::set<int> places;
  for (int row = 0; row < Rows; ++row)
    for (int c = 0; c < Panels::chunks; ++c) {
      const int at = Panels::address(1024, row, c);
      EXPECT_EQ(at % 16, 0);
      EXPECT_GE(at, 1024);
      EXPECT_LT(at, 1024 + Panels::all_bytes);
      EXPECT_TRUE(places.insert(at).second) << "row " << row << " chunk " << c;
      // As a product of a warpgroup finds it: bits 4 to 6 of an address in rows xored with bits 7 to 9.
      const int plain = 1024 + c / 8 * Panels::panel_bytes + row * 128 + c % 8 * 16;
      EXPECT_EQ(at, plain ^ (plain >> 7 & 7) << 4);
      for (int x = 0; c + x < Panels::chunks; ++x)
        if ((c < 2 && x % 2 == 0) || x % Panels::group == 0) {
          EXPECT_EQ(Panels::beside(at, x), Panels::address(1024, row, c + x)) << row << " " << c << " " << x;
        }
    }
  for (int first = 0; first < Rows; first += 8)
    for (int c = 0; c < Panels::chunks; ++c) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(Panels::address(0, row, c) % 128);
      EXPECT_EQ(banks.size(), 8u) << Columns << " columns, chunk " << c;
    }
}

TEST(SharedPanels, PermuteChunksWithoutBankConflicts) {
  check_panels<64, 64>();
  check_panels<128, 64>();
  check_panels<128, 128>();
  check_panels<192, 80>();
  check_panels<256, 8>();
}

TEST(Lanes, HoldAnAccumulatorOnce) {
  std::set<int> elements;
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) elements.insert(Lanes::row(lane, e) * 8 + Lanes::column(lane, e));
  EXPECT_EQ(elements.size(), 128u);
  EXPECT_EQ(*elements.rbegin(), 127);
  EXPECT_EQ(Lanes::row(5, 2), 9);  // PTX ISA: row group + 8 for the upper two
  EXPECT_EQ(Lanes::column(5, 3), 3);
}

TEST(Lanes, NameEveryRowAndChunkOfAnOperand) {
  std::set<int> a, b;
  for (int lane = 0; lane < 32; ++lane) {
    a.insert(Lanes::a_row(lane) * 2 + Lanes::a_chunk(lane));
    b.insert(Lanes::b_row(lane) * 2 + Lanes::b_chunk(lane));
  }
  EXPECT_EQ(a.size(), 32u);
  EXPECT_EQ(b.size(), 32u);
  EXPECT_EQ(Lanes::a_row(17), 1);  // matrix 2 of A: the upper half of the depth
  EXPECT_EQ(Lanes::a_chunk(17), 1);
  EXPECT_EQ(Lanes::b_row(17), 9);  // matrix 2 of B: the next eight columns
  EXPECT_EQ(Lanes::b_chunk(9), 1);
}

template <class M> void check_tiles(const M& mask, Index q_begin, Index q_end, Index keys, int* asked = nullptr) {
  constexpr Index width = 16;
  int count = 0;
  const auto seen = [&](Index begin, Index end) {
    ++count;
    EXPECT_GE(begin, 0);
    EXPECT_LT(begin, end);
    EXPECT_LE(end, keys);
    return mha::tile(mask, 0, 0, q_begin, q_end, begin, end);
  };
  const KeyTiles<width, decltype(seen)> tiles(keys, seen);
  std::vector<int> state(static_cast<std::size_t>((keys + width - 1) / width), 0);  // 1 whole, 2 partial
  Index before = (keys + width - 1) / width;
  for (KeyTile tile = tiles.first(); tile; tile = tiles.after(tile)) {
    ASSERT_LT(tile.index, before);
    before = tile.index;
    state[static_cast<std::size_t>(tile.index)] = tile.partial ? 2 : 1;
  }
  for (Index t = 0; t < static_cast<Index>(state.size()); ++t) {
    bool any = false, all = (t + 1) * width <= keys;
    for (Index k = t * width; k < std::min(keys, (t + 1) * width); ++k)
      for (Index q = q_begin; q < q_end; ++q) {
        any = any || mask(0, 0, q, k);
        all = all && mask(0, 0, q, k);
      }
    const int got = state[static_cast<std::size_t>(t)];
    EXPECT_TRUE(!any || got != 0) << "tile " << t << " is visible";
    EXPECT_TRUE(all == (got == 1)) << "tile " << t << (all ? " is whole" : " is not whole");
  }
  if (asked != nullptr) *asked = count;
}

TEST(KeyTiles, MeetWhatTheMaskShows) {
  support::Random random("key tiles");
  for (int i = 0; i < 300; ++i) {
    const Index keys = random.below(300), q = random.below(300) - 20, end = q + 1 + random.below(40);
    check_tiles(Full{}, q, end, keys);
    check_tiles(Causal{}, q, end, keys);
    check_tiles(Not{Causal{}}, q, end, keys);
    check_tiles(SlidingWindow{.left = random.below(60), .right = random.below(60)}, q, end, keys);
  }
}

TEST(KeyTiles, SkipLongHiddenStretchesInFewSteps) {
  int asked = 0;
  check_tiles(Causal{}, 0, 16, 16 * 4000, &asked);
  EXPECT_LT(asked, 200);
  check_tiles(SlidingWindow{.left = 5}, 16 * 3999, 16 * 4000, 16 * 4000, &asked);
  EXPECT_LT(asked, 200);
}

TEST(KeyTiles, AreNoneWithoutKeys) {
  check_tiles(Full{}, 0, 5, 0);
  check_tiles(Not{Full{}}, 0, 5, 100);
}

}  // namespace
