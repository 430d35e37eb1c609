// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/books.hpp>

#include "book_model.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Ring;
using mha::ShapeError;
using mha::detail::BlockBook;
using mha::detail::Gone;
using mha::detail::Growth;
using mha::detail::PageBook;
using mha::detail::RowCopies;
using namespace books;

TEST(BlockBook, KeepsEveryPositionOfContiguousSequences) {
  random_operations(Model<BlockBook<Contiguous>>(Contiguous{.length = 24}, sequences), 5,
                    [](auto&, int refused) { ASSERT_EQ(refused, 0); });
}

TEST(BlockBook, KeepsWhatARingHasNotDropped) {
  const Ring ring{.left = 5, .rows = 4, .first = 3};
  random_operations(Model<BlockBook<Ring>>(ring, sequences), 4, [](auto& model, int refused) {
    ASSERT_EQ(refused, 0);
    for (Index slot = 0; slot < 6; ++slot) {
      if (!model.live(slot)) continue;
      const Gone gone = model.book().gone(slot, 0);
      // The first stay, and the window of the next query.
      ASSERT_EQ(gone.first, gone.oldest == 0 ? 0 : 3);
      ASSERT_LE(gone.oldest, std::max(3, model.length(slot) - 5));
    }
  });
}

TEST(BlockBook, SaysWhereItsRowsAre) {
  const auto contiguous = BlockBook(Contiguous{.length = 30}, 4).extents();
  EXPECT_EQ(contiguous.blocks, 4);
  EXPECT_EQ(contiguous.rows, 30);
  EXPECT_EQ(contiguous.turning, 0);
  EXPECT_FALSE(contiguous.pages);
  const auto ring = BlockBook(Ring{.left = 6, .rows = 4, .first = 2}, 4).extents();
  EXPECT_EQ(ring.rows, 16) << "what is kept, and room for a step";
  EXPECT_EQ(ring.turning, 14);
  const auto paged = PageBook(Paged{.pages = 8, .length = 40, .page = 16}, 4).extents();
  EXPECT_EQ(paged.blocks, 8);
  EXPECT_EQ(paged.rows, 16);
  EXPECT_EQ(paged.turning, 0);
  EXPECT_TRUE(paged.pages);
}

TEST(BlockBook, RefusesAStepLongerThanTheRingsRows) {
  BlockBook book(Ring{.left = 5, .rows = 4}, 2);
  RowCopies copies;
  const Growth growths[] = {{1, 0, 4}, {0, 0, 5}};
  try {
    book.reserve(growths, copies);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("step: sequence 1 gets 5 rows, the limit of this Ring is 4"),
              std::string::npos)
        << e.what();
  }
}

TEST(BlockBook, ARingGoesBackByItsRows) {
  Model<BlockBook<Ring>> model(Ring{.left = 2, .rows = 3}, 1);
  model.add(0);
  for (int i = 0; i < 4; ++i) model.step({{0, model.length(0), 3}}, true, true);  // length 12
  EXPECT_TRUE(model.book().can_truncate(0, 9));
  EXPECT_FALSE(model.book().can_truncate(0, 8));
  model.truncate(0, 9);
  EXPECT_TRUE(model.book().can_truncate(0, 9));
  EXPECT_FALSE(model.book().can_truncate(0, 8)) << "positions 9 to 11 were written over 4 to 6";
  model.expect_right();
}

TEST(BlockBook, ARingGoesBackAnyWayWhereItHasWrittenOverNothing) {
  Model<BlockBook<Ring>> model(Ring{.left = 2, .rows = 3}, 1);
  model.add(0);
  model.step({{0, 0, 3}}, true, true);
  model.step({{0, 3, 2}}, true, true);  // as many as it keeps
  EXPECT_TRUE(model.book().can_truncate(0, 1));
  model.truncate(0, 1);
  model.step({{0, 1, 3}}, true, true);
  model.step({{0, 4, 2}}, true, true);
  EXPECT_EQ(model.book().gone(0, 0).oldest, 1) << "of six positions the last five are kept";
  EXPECT_FALSE(model.book().can_truncate(0, 2));
  model.expect_right();
}

// Of the first positions nothing is ever gone, nor of what a fork or the sequence itself writes behind them.
TEST(BlockBook, AForkOfTheFirstPositionsHasNothingGone) {
  Model<BlockBook<Ring>> model(Ring{.left = 2, .rows = 3, .first = 4}, 2);
  const auto expect_all = [&](Index slot, Index length) {
    EXPECT_EQ(model.book().gone(slot, 0).oldest, 0) << length;
    model.step({{slot, length, 3}}, true, true);
    EXPECT_EQ(model.book().gone(slot, 0).oldest, 0) << length;
    model.expect_right();
  };
  model.add(0);
  for (int i = 0; i < 5; ++i) model.step({{0, model.length(0), 3}}, true, true);
  ASSERT_GT(model.book().gone(0, 0).oldest, 4);
  for (const Index length : {0, 2, 4}) {
    ASSERT_TRUE(model.book().can_truncate(0, length));
    model.fork(0, 1, length);
    expect_all(1, length);
    model.remove(1);
  }
  EXPECT_FALSE(model.book().can_truncate(0, 5));
  model.truncate(0, 4);
  expect_all(0, 4);
}

TEST(BlockBook, AStepThatIsDroppedGoesOverNothingThatARingKeeps) {
  Model<BlockBook<Ring>> model(Ring{.left = 2, .rows = 3, .first = 1}, 1);
  model.add(0);
  for (int i = 0; i < 4; ++i) model.step({{0, model.length(0), 3}}, true, true);
  const Index oldest = model.book().gone(0, 0).oldest;
  EXPECT_EQ(oldest, 7);
  model.step({{0, 12, 3}}, true, false);
  EXPECT_EQ(model.book().gone(0, 0).oldest, oldest);
  EXPECT_TRUE(model.book().can_truncate(0, 9));
  model.expect_right();
}

/// Free pages and those of the live sequences are all pages.
template <class Model> void expect_pages_add_up(Model& model, Index pages) {
  std::set<Index> used;
  for (Index slot = 0; slot < 6; ++slot)
    if (model.live(slot))
      for (const Index page : model.book().pages(slot, model.length(slot))) used.insert(page);
  ASSERT_EQ(static_cast<Index>(used.size()) + model.book().free_pages(), pages);
}

TEST(PageBook, KeepsEveryPositionAndEveryPage) {
  // A fork at another length, a reorder or a truncated sequence leaves partly filled pages with several owners.
  random_operations(Model<PageBook<Paged>>(Paged{.pages = 400, .length = 900, .page = 16}, sequences), 21,
                    [](auto& model, int) { expect_pages_add_up(model, 400); });
}

TEST(PageBook, RefusesStepsWithoutPagesAndChangesNothing) {
  int most = 0;
  random_operations(Model<PageBook<Paged>>(Paged{.pages = 14, .length = 120, .page = 16}, sequences), 21,
                    [&](auto& model, int refused) {
                      expect_pages_add_up(model, 14);
                      most = std::max(most, refused);
                    });
  EXPECT_GT(most, 50);
}

TEST(PageBook, CopiesASharedPageAtTheFirstWriteOnly) {
  PageBook book(Paged{.pages = 4, .length = 64, .page = 16}, 3);
  RowCopies copies;
  const Growth first[] = {{0, 0, 20}};
  book.reserve(first, copies);
  book.commit(first);
  EXPECT_EQ(book.free_pages(), 2);
  book.fork(0, 1, 20, copies);
  book.fork(0, 2, 16, copies);
  EXPECT_EQ(book.free_pages(), 2) << "shared";
  EXPECT_TRUE(copies.empty());
  // Both owners of the page with 4 positions write: one copies it, then the other has it alone.
  const Growth both[] = {{0, 20, 1}, {1, 20, 1}};
  book.reserve(both, copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].count, 4);
  EXPECT_EQ(book.free_pages(), 1);
  book.drop();
  EXPECT_EQ(book.free_pages(), 2);
  EXPECT_EQ(book.row(0, 17), book.row(1, 17)) << "shared again";
  const Growth third[] = {{2, 16, 1}};  // its only page is full: nothing is copied
  copies.clear();
  book.reserve(third, copies);
  EXPECT_TRUE(copies.empty());
}

TEST(PageBook, CountsThePagesOfAStep) {
  PageBook book(Paged{.pages = 9, .length = 64, .page = 16}, 4);
  RowCopies copies;
  const auto needed = [&](const std::vector<Growth>& growths) { return book.pages_needed(growths); };
  EXPECT_EQ(needed({}), 0);
  EXPECT_EQ(needed({{0, 0, 0}}), 0);
  EXPECT_EQ(needed({{0, 0, 16}, {1, 0, 17}}), 3);
  const Growth first[] = {{0, 0, 20}};
  book.reserve(first, copies);
  book.commit(first);
  EXPECT_EQ(needed({{0, 20, 12}}), 0);
  EXPECT_EQ(needed({{0, 20, 13}}), 1);
  for (const Index length : {20, 18}) book.fork(0, length == 20 ? 1 : 2, length, copies);
  book.fork(0, 3, 16, copies);
  EXPECT_EQ(needed({{1, 20, 1}}), 1) << "a copy of the page that has 4 positions";
  EXPECT_EQ(needed({{1, 20, 13}}), 2);
  EXPECT_EQ(needed({{1, 20, 0}, {2, 18, 1}}), 1);
  EXPECT_EQ(needed({{1, 20, 1}, {2, 18, 1}}), 2);
  EXPECT_EQ(needed({{1, 20, 1}, {2, 18, 1}, {0, 20, 1}}), 2) << "one of three owners needs no copy";
  EXPECT_EQ(needed({{1, 20, 1}, {2, 18, 1}, {0, 20, 1}}), 2) << "the question changes nothing";
  EXPECT_EQ(needed({{3, 16, 1}}), 1) << "its page is full";
  EXPECT_EQ(book.free_pages(), 7);
}

TEST(PageBook, CountsThePagesThatNobodyElseHas) {
  PageBook book(Paged{.pages = 9, .length = 64, .page = 16}, 3);
  RowCopies copies;
  const Growth first[] = {{0, 0, 40}};
  book.reserve(first, copies);
  book.commit(first);
  const auto freed = [&](const std::vector<Index>& slots, Index length) { return book.pages_freed(slots, length); };
  EXPECT_EQ(freed({0}, 0), 3);
  EXPECT_EQ(freed({0}, 16), 2);
  EXPECT_EQ(freed({0}, 17), 1);
  EXPECT_EQ(freed({0}, 40), 0);
  book.fork(0, 1, 20, copies);
  book.fork(0, 2, 16, copies);
  EXPECT_EQ(freed({0}, 0), 1);
  EXPECT_EQ(freed({1}, 0), 0);
  EXPECT_EQ(freed({1, 0}, 0), 2);
  EXPECT_EQ(freed({0, 1, 2}, 0), 3);
  EXPECT_EQ(freed({0, 1, 2}, 0), 3) << "the question changes nothing";
  EXPECT_EQ(freed({}, 0), 0);
}

TEST(PageBook, NamesThePagesThatAreMissing) {
  PageBook book(Paged{.pages = 3, .length = 160, .page = 16}, 1);
  RowCopies copies;
  const Growth growths[] = {{0, 0, 65}};
  try {
    book.reserve(growths, copies);
    FAIL();
  } catch (const mha::CacheFull& e) {
    EXPECT_NE(std::string(e.what()).find("step: 5 pages of 16 positions are needed, 3 of 3 are free"),
              std::string::npos)
        << e.what();
    EXPECT_EQ(e.of, mha::CacheFull::pages);
    EXPECT_EQ(e.needed, 5);
    EXPECT_EQ(e.free, 3);
    EXPECT_EQ(e.total, 3);
  }
  try {
    book.fill(0, 0, 49, Gone{}, copies);
    FAIL();
  } catch (const mha::CacheFull& e) {
    EXPECT_NE(std::string(e.what()).find("restore: 4 pages of 16 positions are needed, 3 of 3 are free"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
