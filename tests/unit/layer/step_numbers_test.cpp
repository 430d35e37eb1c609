// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/step_numbers.hpp>

namespace {

using mha::Index;
using List = std::vector<Index>;

/// Position p of slot s is in row 100·s + p.
struct Blocks {
  Index row(Index slot, Index position) const { return 100 * slot + position; }
  Index block(Index slot) const { return 10 + slot; }
  mha::detail::Gone gone(Index slot, Index length) const { return {0, slot == 3 ? length - 1 : 0}; }
};
struct Pages {
  Index row(Index slot, Index position) const { return 100 * slot + position; }
  Index width() const { return 3; }
  List pages(Index slot, Index length) const { return List(static_cast<std::size_t>((length + 15) / 16), slot); }
};

mha::detail::StepNumbers two_sequences() {
  mha::detail::StepNumbers now(4);
  now.growths = {{3, 5, 2}, {1, 0, 17}};
  now.slots = {3, 1};
  return now;
}

TEST(StepNumbers, OfBlocks) {
  auto now = two_sequences();
  now.reserve_rows(Blocks{}, 19);
  for (int again = 0; again < 2; ++again) {
    now.slots = {3, 1};
    now.describe(Blocks{});
    EXPECT_EQ(now.offsets, (List{0, 2, 19}));
    EXPECT_EQ(now.positions, (List{5, 0}));
    EXPECT_EQ(now.lengths, (List{7, 17}));
    EXPECT_EQ(now.slots, (List{13, 11}));
    EXPECT_EQ(now.oldest, (List{6, 0}));
    ASSERT_EQ(now.to_row.size(), 19u);
    EXPECT_EQ(now.to_row[0], 305);
    EXPECT_EQ(now.to_row[1], 306);
    EXPECT_EQ(now.to_row[18], 116);
    EXPECT_TRUE(now.table.empty());
  }
}

TEST(StepNumbers, BeginsWithTheGrowthsAndMemoryForTheirRows) {
  mha::detail::StepNumbers now(4);
  const mha::detail::Growth growths[] = {{3, 5, 2}, {1, 0, 17}};
  for (int again = 0; again < 2; ++again) {
    now.begin(Pages{}, growths);
    EXPECT_EQ(now.slots, (List{3, 1}));
    ASSERT_EQ(now.growths.size(), 2u);
    EXPECT_EQ(now.growths[1].rows, 17);
    EXPECT_GE(now.to_row.capacity(), 19u);
    EXPECT_EQ(now.table.size(), 6u);
  }
}

TEST(StepNumbers, OfPages) {
  auto now = two_sequences();
  now.reserve_rows(Pages{}, 19);
  now.describe(Pages{});
  ASSERT_EQ(now.table.size(), 6u);
  EXPECT_EQ(now.table[0], 3);
  EXPECT_EQ(now.table[3], 1);
  EXPECT_EQ(now.table[4], 1);
  EXPECT_EQ(now.slots, (List{3, 1}));
}

/// Pages whose tiles are in others.
struct TilePages : Pages {
  bool separate;
  bool has_tile_pages() const { return separate; }
  struct Tiles {
    std::vector<Index> pages_of{8, 9};
    Index width() const { return 2; }
    std::span<const Index> pages(Index, Index) const { return pages_of; }
  } tiles{};
  const Tiles& tile_pages() const { return tiles; }
};

TEST(StepNumbers, OfPagesOfTiles) {
  auto now = two_sequences();
  const TilePages book{{}, true, {}};
  now.reserve_rows(book, 19);
  now.describe(book);
  EXPECT_EQ(now.table[0], 3);
  EXPECT_EQ(now.tile_table, (List{8, 9, 8, 9}));
  auto without = two_sequences();
  const TilePages rows{{}, false, {}};
  without.reserve_rows(rows, 19);
  without.describe(rows);
  EXPECT_EQ(without.table[0], 3);
  EXPECT_TRUE(without.tile_table.empty());
}

TEST(StepNumbers, OfOneSequenceAsItIs) {
  auto now = two_sequences();
  now.describe(Blocks{}, 3, 40);
  EXPECT_EQ(now.lengths, (List{40}));
  EXPECT_EQ(now.slots, (List{13}));
  EXPECT_EQ(now.oldest, (List{39}));
  EXPECT_TRUE(now.to_row.empty());
  now.describe(Pages{}, 1, 40);
  EXPECT_EQ(now.lengths, (List{40}));
  EXPECT_EQ(now.table, (List{1, 1, 1}));
}

TEST(OpenStep, KeepsACacheWhereItIs) {
  using mha::detail::OpenStep;
  OpenStep open, none;
  none = OpenStep(std::move(none));
  open.there = true;
  EXPECT_THROW(OpenStep(std::move(open)), mha::ShapeError);
  EXPECT_THROW(none = std::move(open), mha::ShapeError);
  EXPECT_THROW(open = std::move(none), mha::ShapeError);
  EXPECT_TRUE(open.there);
  EXPECT_FALSE(none.there);
}

// What is kept closes up: done in their order, the copies put each kept row where it belongs.
TEST(StepNumbers, KeptRowsCloseUp) {
  mha::detail::StepNumbers now(4);
  const mha::detail::Growth growths[] = {{0, 5, 4}, {1, 2, 0}, {2, 7, 6}};
  const auto kept_of = [&](const List& kept) {
    now.begin(Blocks{}, growths);
    now.describe(Blocks{});
    mha::detail::RowCopies copies;
    copies.reserve(kept.size());
    now.keep(kept, copies);
    List memory(1000);
    std::iota(memory.begin(), memory.end(), 0);
    for (const auto& c : copies) {
      EXPECT_LE(c.count, std::abs(c.from - c.to)) << "the threads of a device copy the rows of one at once";
      std::copy_n(memory.begin() + c.from, c.count, memory.begin() + c.to);
    }
    List rows;
    for (const auto& g : now.growths)
      for (Index i = 0; i < g.rows; ++i) rows.push_back(memory[static_cast<std::size_t>(100 * g.slot + g.length + i)]);
    return rows;
  };
  EXPECT_EQ(kept_of({}), List{});
  EXPECT_EQ(kept_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), (List{5, 6, 7, 8, 207, 208, 209, 210, 211, 212}));
  EXPECT_EQ(kept_of({1, 2, 3, 7, 8, 9}), (List{6, 7, 8, 210, 211, 212}));
  EXPECT_EQ(kept_of({0, 3, 4, 6, 9}), (List{5, 8, 207, 209, 212}));
  EXPECT_EQ(now.growths[0].rows, 2);
  EXPECT_EQ(now.growths[1].rows, 0);
  EXPECT_EQ(now.growths[2].rows, 3);
}

}  // namespace
