// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/tiled_books.hpp>

/// A book of a cache against the plainest model of it.
namespace books {

using mha::Index;
using mha::ShapeError;
using mha::detail::Gone;
using mha::detail::Growth;
using mha::detail::RowCopies;

inline std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// A book beside the plainest model of it: every sequence is a list of the numbers written to its positions, and the
/// rows of the cache are one list of numbers. So are its tiles, if it has pages of them: those of a page are written
/// from the rows of a sequence.
template <class Book> class Model {
  static constexpr bool paged = requires(const Book& book) { book.free_pages(); };
  static constexpr bool tiled = std::same_as<Book, mha::detail::TiledPageBook<mha::Paged>>;

 public:
  template <class Storage, class... Tiles>
  Model(const Storage& storage, Index sequences, Tiles... positions)
      : book_(storage, sequences, positions...),
        rows_(at(book_.extents().blocks) * at(book_.extents().rows), -1),
        tiles_(at(tile_extents().blocks) * at(tile_extents().rows), -1),
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
    expect_freed(slot, 0, [&] { book_.remove(slot); });
    sequences_[at(slot)].clear();
    live_[at(slot)] = false;
  }
  void truncate(Index slot, Index length) {
    expect_freed(slot, length, [&] { book_.truncate(slot, length); });
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

  /// A step that is committed or dropped, after it wrote or before. It takes the pages that it was said to need, or is
  /// refused for want of them.
  void step(const std::vector<Growth>& growths, bool wrote, bool committed) {
    RowCopies copies;
    if constexpr (paged) {
      const Index needed = book_.pages_needed(growths), free = book_.free_pages();
      try {
        book_.reserve(growths, copies);
      } catch (const mha::CacheFull& full) {
        EXPECT_EQ(full.needed, needed);
        EXPECT_GT(full.needed, full.free);
        EXPECT_EQ(full.free, free);
        EXPECT_EQ(full.total, book_.extents().blocks);
        throw;
      }
      EXPECT_EQ(free - book_.free_pages(), needed);
    } else {
      book_.reserve(growths, copies);
    }
    run(copies);
    for (const Growth& g : growths)
      for (Index i = 0; wrote && i < g.rows; ++i) {
        rows_[at(book_.row(g.slot, g.length + i))] = ++written_;
        if (committed) sequences_[at(g.slot)].push_back(written_);
      }
    if constexpr (tiled)
      for (const Growth& g : growths) {
        const Index page = tile_extents().rows;
        for (Index p = g.length / page * page; wrote && g.rows > 0 && p < g.length + g.rows; ++p)
          tiles_[at(book_.tile_pages().row(g.slot, p))] = rows_[at(book_.row(g.slot, p))];
      }
    if (committed)
      book_.commit(growths);
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
          if constexpr (tiled) {
            ASSERT_EQ(tiles_[at(book_.tile_pages().row(slot, p))], sequences_[at(slot)][at(p)])
                << "tiles of sequence " << slot << " at " << p;
          }
        }
    }
  }

 private:
  /// That a call frees the pages that it was said to free.
  template <class Call> void expect_freed([[maybe_unused]] Index slot, [[maybe_unused]] Index length, Call&& call) {
    if constexpr (paged) {
      const Index slots[] = {slot}, freed = book_.pages_freed(slots, length), free = book_.free_pages();
      call();
      EXPECT_EQ(book_.free_pages() - free, freed);
    } else {
      call();
    }
  }
  mha::detail::BlockExtents tile_extents() const {
    if constexpr (tiled)
      return book_.tile_pages().extents();
    else
      return {0, 0};
  }
  void run(RowCopies& copies) {
    const auto copy = [](const RowCopies& all, std::vector<int>& in) {
      for (const auto& c : all) std::copy_n(in.begin() + c.from, c.count, in.begin() + c.to);
    };
    copy(copies, rows_);
    if constexpr (tiled) {
      RowCopies& of_tiles = book_.copies_of_tiles(copies);
      copy(of_tiles, tiles_);
      of_tiles.clear();
    }
  }

  Book book_;
  std::vector<int> rows_, tiles_;
  std::vector<std::vector<int>> sequences_;
  std::vector<bool> live_;
  int written_ = 0;
};

inline constexpr Index sequences = 6;

/// check(model, refused) after each of many operations on a model of so many sequences; `most`: the rows of a step.
template <class Book, class Check> void random_operations(Model<Book> model, Index most, const Check& check) {
  std::mt19937 random(20261123);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
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
        } catch (const ShapeError& e) {
          const std::string rows = " pages of " + std::to_string(model.book().extents().rows) + " ";
          ASSERT_NE(std::string(e.what()).find(rows), std::string::npos) << e.what();
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

}  // namespace books
