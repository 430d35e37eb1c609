// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/books.hpp>

namespace {

using mha::Contiguous;
using mha::Index;
using mha::Paged;
using mha::Ring;
using mha::ShapeError;
using mha::detail::BookOf;
using mha::detail::Gone;
using mha::detail::Growth;
using mha::detail::RowCopies;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A book beside the plainest model of it: every sequence is a list of the numbers written to its positions, and the
/// rows of the cache are one list of numbers.
template <class Storage> class Model {
 public:
  Model(const Storage& storage, Index sequences)
      : book_(storage, sequences),
        rows_(at(book_.extents().blocks) * at(book_.extents().rows), -1),
        sequences_(at(sequences)),
        live_(at(sequences)) {}

  auto& book() { return book_; }
  bool live(Index slot) const { return live_[at(slot)]; }
  Index length(Index slot) const { return static_cast<Index>(sequences_[at(slot)].size()); }

  void add(Index slot) {
    book_.add(slot);
    sequences_[at(slot)].clear();
    live_[at(slot)] = true;
  }
  void remove(Index slot) {
    book_.remove(slot);
    sequences_[at(slot)].clear();
    live_[at(slot)] = false;
  }
  void truncate(Index slot, Index length) {
    book_.truncate(slot, length);
    sequences_[at(slot)].resize(at(length));
  }
  void fork(Index from, Index to, Index length) {
    RowCopies copies;
    book_.fork(from, to, length, copies);
    run(copies);
    sequences_[at(to)].assign(sequences_[at(from)].begin(), sequences_[at(from)].begin() + length);
    live_[at(to)] = true;
  }
  void reorder(const std::vector<Index>& slots, const std::vector<Index>& from) {
    std::vector<Index> lengths;
    std::vector<std::vector<int>> before;
    for (const Index slot : slots) {
      lengths.push_back(length(slot));
      before.push_back(sequences_[at(slot)]);
    }
    RowCopies copies;
    book_.reorder(slots, from, lengths, copies, [&] { run(copies); });
    for (std::size_t i = 0; i < slots.size(); ++i) sequences_[at(slots[i])] = before[at(from[i])];
  }

  /// A step that is committed or dropped, after it wrote or before.
  void step(const std::vector<Growth>& growths, bool wrote, bool committed) {
    RowCopies copies;
    book_.reserve(growths, copies);
    run(copies);
    if (wrote) book_.write(growths);
    for (const Growth& g : growths)
      for (Index i = 0; wrote && i < g.rows; ++i) {
        rows_[at(book_.row(g.slot, g.length + i))] = ++written_;
        if (committed) sequences_[at(g.slot)].push_back(written_);
      }
    if (committed)
      book_.commit();
    else
      book_.drop();
  }

  /// Every position that is not gone is where the book says.
  void expect_right() {
    for (Index slot = 0; slot < static_cast<Index>(sequences_.size()); ++slot) {
      if (!live(slot)) continue;
      const Gone gone = book_.gone(slot, 0);
      for (Index p = 0; p < length(slot); ++p)
        if (p < gone.first || p >= gone.oldest) {
          ASSERT_EQ(rows_[at(book_.row(slot, p))], sequences_[at(slot)][at(p)]) << "sequence " << slot << " at " << p;
        }
    }
  }

 private:
  void run(const RowCopies& copies) {
    for (const auto& c : copies) std::copy_n(rows_.begin() + c.from, c.count, rows_.begin() + c.to);
  }

  typename BookOf<Storage>::type book_;
  std::vector<int> rows_;
  std::vector<std::vector<int>> sequences_;
  std::vector<bool> live_;
  int written_ = 0;
};

template <class Storage, class Check> void random_operations(const Storage& storage, Index most, const Check& check) {
  constexpr Index sequences = 6;
  std::mt19937 random(20261123);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  Model<Storage> model(storage, sequences);
  int refused = 0, forks = 0, rewinds = 0;
  for (int round = 0; round < 4000; ++round) {
    const Index slot = below(sequences), other = below(sequences);
    switch (below(8)) {
      case 0:
        if (!model.live(slot)) model.add(slot);
        break;
      case 1:
        if (model.live(slot) && below(4) == 0) model.remove(slot);
        break;
      case 2:
        if (model.live(slot) && !model.live(other)) {
          const Index length = model.length(slot) - below(std::min<Index>(model.length(slot), 4) + 1);
          if (!model.book().can_truncate(slot, length)) break;
          model.fork(slot, other, length);
          ++forks;
        }
        break;
      case 3:
        if (model.live(slot)) {
          const Index length = model.length(slot) - below(std::min<Index>(model.length(slot), 6) + 1);
          if (!model.book().can_truncate(slot, length)) break;
          model.truncate(slot, length);
          ++rewinds;
        }
        break;
      case 4: {
        std::vector<Index> slots, from;
        for (Index s = 0; s < sequences; ++s)
          if (model.live(s)) slots.push_back(s);
        for (std::size_t i = 0; i < slots.size(); ++i) from.push_back(below(static_cast<Index>(slots.size())));
        if (below(4) == 0) model.reorder(slots, from);
        break;
      }
      default: {
        std::vector<Growth> growths;
        for (Index s = 0; s < sequences; ++s)
          if (model.live(s) && below(3) > 0) {
            const Index rows = std::min(below(most + 1), model.book().limit() - model.length(s));
            growths.push_back({s, model.length(s), rows});
          }
        const bool wrote = below(4) > 0;
        try {
          model.step(growths, wrote, wrote && below(3) > 0);
        } catch (const ShapeError&) {
          ++refused;
        }
      }
    }
    model.expect_right();
    check(model, refused);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(forks, 30);
  EXPECT_GT(rewinds, 50);
}

TEST(BlockBook, KeepsEveryPositionOfContiguousSequences) {
  random_operations(Contiguous{.length = 24}, 5, [](auto&, int refused) { ASSERT_EQ(refused, 0); });
}

TEST(BlockBook, KeepsWhatARingHasNotDropped) {
  const Ring ring{.left = 5, .rows = 4, .first = 3};
  random_operations(ring, 4, [](auto& model, int refused) {
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
  const auto contiguous = BookOf<Contiguous>::type({.length = 30}, 4).extents();
  EXPECT_EQ(contiguous.blocks, 4);
  EXPECT_EQ(contiguous.rows, 30);
  EXPECT_EQ(contiguous.turning, 0);
  EXPECT_FALSE(contiguous.pages);
  const auto ring = BookOf<Ring>::type({.left = 6, .rows = 4, .first = 2}, 4).extents();
  EXPECT_EQ(ring.rows, 12);
  EXPECT_EQ(ring.turning, 10);
  const auto paged = BookOf<Paged>::type({.pages = 8, .length = 40, .page = 16}, 4).extents();
  EXPECT_EQ(paged.blocks, 8);
  EXPECT_EQ(paged.rows, 16);
  EXPECT_EQ(paged.turning, 0);
  EXPECT_TRUE(paged.pages);
}

TEST(BlockBook, RefusesAStepLongerThanTheRingsRows) {
  mha::detail::BlockBook book(Ring{.left = 5, .rows = 4}, 1);
  RowCopies copies;
  const Growth growths[] = {{0, 0, 5}};
  try {
    book.reserve(growths, copies);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("adds 5 rows to a sequence, the limit of this Ring is 4"), std::string::npos)
        << e.what();
  }
}

TEST(BlockBook, ARingGoesBackByItsRows) {
  Model<Ring> model(Ring{.left = 2, .rows = 3}, 1);
  model.add(0);
  for (int i = 0; i < 4; ++i) model.step({{0, model.length(0), 3}}, true, true);  // length 12
  EXPECT_TRUE(model.book().can_truncate(0, 9));
  EXPECT_FALSE(model.book().can_truncate(0, 8));
  model.truncate(0, 9);
  EXPECT_TRUE(model.book().can_truncate(0, 9));
  EXPECT_FALSE(model.book().can_truncate(0, 8)) << "positions 9 to 11 were written over 4 to 6";
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
  random_operations(Paged{.pages = 400, .length = 900, .page = 16}, 21,
                    [](auto& model, int) { expect_pages_add_up(model, 400); });
}

TEST(PageBook, RefusesStepsWithoutPagesAndChangesNothing) {
  int most = 0;
  random_operations(Paged{.pages = 14, .length = 120, .page = 16}, 21, [&](auto& model, int refused) {
    expect_pages_add_up(model, 14);
    most = std::max(most, refused);
  });
  EXPECT_GT(most, 50);
}

TEST(PageBook, CopiesASharedPageAtTheFirstWriteOnly) {
  mha::detail::PageBook book(Paged{.pages = 4, .length = 64, .page = 16}, 3);
  RowCopies copies;
  const Growth first[] = {{0, 0, 20}};
  book.reserve(first, copies);
  book.commit();
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

TEST(PageBook, NamesThePagesThatAreMissing) {
  mha::detail::PageBook book(Paged{.pages = 3, .length = 160, .page = 16}, 1);
  RowCopies copies;
  const Growth growths[] = {{0, 0, 65}};
  try {
    book.reserve(growths, copies);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("needs 5 pages of 16 positions, 3 of 3 are free"), std::string::npos)
        << e.what();
  }
}

}  // namespace
