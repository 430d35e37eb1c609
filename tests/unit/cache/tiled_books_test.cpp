// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gtest/gtest.h>

#include <mha/cache/tiled_books.hpp>

#include "book_model.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Ring;
using mha::detail::BlockBook;
using mha::detail::Gone;
using mha::detail::TiledPageBook;
using namespace books;

// A step that rows have pages for has pages for its tiles too: model.step() is refused for want of rows alone.
TEST(TiledPageBook, KeepsTheTilesOfEveryPosition) {
  for (const Index positions : {32, 64, 128}) {
    SCOPED_TRACE(positions);
    int refusals = 0;
    for (const Index pages : {14, 40, 400})
      random_operations(
          Model<TiledPageBook<Paged>>(Paged{.pages = pages, .length = 400, .page = 16}, sequences, positions),
          positions / 2, [&](auto& model, int refused) {
            ASSERT_TRUE(model.book().has_tile_pages());
            ASSERT_GE(model.book().tile_pages().free_pages(), 0);
            refusals += refused;
          });
    EXPECT_GT(refusals, 0);
  }
}

TEST(TiledPageBook, HasPagesOfTilesForAllPagesOfRows) {
  const auto tiles = [](const Paged& s, Index of) { return TiledPageBook(s, of, 64).tile_pages().extents(); };
  EXPECT_EQ(tiles({.pages = 100, .length = 10000, .page = 16}, 3).blocks, 25 + 6);
  EXPECT_EQ(tiles({.pages = 101, .length = 10000, .page = 32}, 3).blocks, 51 + 6);
  EXPECT_EQ(tiles({.pages = 100, .length = 130, .page = 16}, 3).blocks, 9) << "no more than sequences take";
  EXPECT_EQ(tiles({.pages = 100, .length = 130, .page = 16}, 3).rows, 64);
  EXPECT_TRUE(tiles({.pages = 100, .length = 130, .page = 16}, 3).pages);
}

TEST(TiledPageBook, KeepsTilesOfLongPagesWhereRowsAre) {
  TiledPageBook book(Paged{.pages = 4, .length = 400, .page = 64}, 2, 64);
  EXPECT_FALSE(book.has_tile_pages());
  EXPECT_EQ(&book.tile_pages(), &book);
  mha::detail::RowCopies copies;
  EXPECT_EQ(&book.copies_of_tiles(copies), &copies);
}

// Two sequences that share 40 positions: 48 is the end of a page of rows, but not of one of tiles.
TEST(TiledPageBook, CopiesTilesThatAreSharedBeforeItWrites) {
  Model<TiledPageBook<Paged>> model(Paged{.pages = 8, .length = 128, .page = 16}, 2, 64);
  model.add(0);
  model.step({{0, 0, 48}}, true, true);
  model.fork(0, 1, 48);
  const auto page = [&](Index slot) { return model.book().tile_pages().row(slot, 0) / 64; };
  EXPECT_EQ(page(0), page(1));
  model.step({{1, 48, 3}}, true, true);
  EXPECT_EQ(model.book().row(0, 40), model.book().row(1, 40)) << "no page of rows was written to";
  EXPECT_NE(page(0), page(1));
  model.expect_right();
  model.step({{0, 48, 3}}, true, false);
  model.expect_right();
}

// Rows are as many as whole multiples take, and what is kept is what is promised.
TEST(BlockBook, KeepsPositionsAndRowsEqualModuloTheirTiles) {
  for (const Ring& ring : {Ring{.left = 37, .rows = 4, .first = 5}, Ring{.left = 16, .rows = 16, .first = 0},
                           Ring{.left = 0, .rows = 1, .first = 32}}) {
    BlockBook book(ring, 3, 16);
    const BlockBook plain(ring, 3);
    const auto up = [](Index n) { return (n + 15) / 16 * 16; };
    EXPECT_EQ(book.extents().rows, up(ring.first) + up(ring.left + 2 * ring.rows));
    EXPECT_EQ(book.extents().turning, up(ring.left + 2 * ring.rows));
    EXPECT_EQ(book.first(), ring.first);
    EXPECT_EQ(book.fixed_rows(), up(ring.first));
    for (Index p = 0; p < 500; ++p) {
      EXPECT_EQ(book.row(1, p) % 16, p % 16);
      EXPECT_EQ(book.gone(1, p).oldest, plain.gone(1, p).oldest);
      EXPECT_EQ(book.gone(1, p).first, plain.gone(1, p).first);
    }
  }
  EXPECT_EQ(BlockBook(Contiguous{.length = 50}, 3, 16).extents().rows, 64);
  EXPECT_EQ(BlockBook(Contiguous{.length = 50}, 3, 16).extents().turning, 0);
}

TEST(BlockBook, KeepsWhatARingInTilesHasNotDropped) {
  const Ring ring{.left = 5, .rows = 4, .first = 3};
  random_operations(Model<BlockBook<Ring>>(ring, sequences, 8), 4, [](auto& model, int refused) {
    ASSERT_EQ(refused, 0);
    for (Index slot = 0; slot < sequences; ++slot) {
      if (!model.live(slot)) continue;
      const Gone gone = model.book().gone(slot, 0);
      ASSERT_EQ(gone.first, gone.oldest == 0 ? 0 : 3);
      ASSERT_LE(gone.oldest, std::max(3, model.length(slot) - 5));
    }
  });
}

}  // namespace
