// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <vector>

#include "../cache/books.hpp"
#include "../config.hpp"
#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Pages of a sequence at most; 0 of a book that has none.
template <class Book> Index table_width(const Book& book) {
  if constexpr (requires { book.width(); })
    return book.width();
  else
    return 0;
}

/// What layers read of a cache's open step, on the host. Vectors keep their memory from step to step.
struct StepNumbers {
  std::vector<Growth> growths;    ///< (sequences)
  std::vector<Index> offsets;     ///< (sequences + 1), of rows
  std::vector<Index> positions;   ///< (sequences), of each one's first row
  std::vector<Index> lengths;     ///< (sequences), the rows of the step included
  std::vector<Index> slots;       ///< (sequences), then of books of blocks their blocks
  std::vector<Index> oldest;      ///< (sequences), of books of blocks
  std::vector<Index> table;       ///< (sequences, width), of books of pages
  std::vector<Index> tile_table;  ///< the same of pages of tiles, where they are not those of rows
  std::vector<Index> to_row;      ///< (rows): where each is stored

  static constexpr std::size_t list_count = 7;
  /// All lists of numbers that a backend with memory of its own reads.
  std::array<const std::vector<Index>*, list_count> lists() const {
    return {&offsets, &positions, &lengths, &slots, &oldest, &table, &to_row};
  }

  explicit StepNumbers(std::size_t sequences) {
    for (auto* list : {&positions, &lengths, &slots, &oldest}) list->reserve(sequences);
    offsets.reserve(sequences + 1);
    growths.reserve(sequences);
  }

  /// Those of a step of the growths, and memory for their rows, so that describe() cannot throw.
  template <class Book> void begin(const Book& book, std::span<const Growth> of) {
    growths.assign(of.begin(), of.end());
    slots.clear();
    std::size_t rows = 0;
    for (const Growth& g : of) {
      slots.push_back(g.slot);
      rows += static_cast<std::size_t>(g.rows);
    }
    reserve_rows(book, rows);
  }

  /// Memory for so many rows.
  template <class Book> void reserve_rows(const Book& book, std::size_t rows) {
    to_row.reserve(rows);
    if constexpr (has_pages<Book>) table.resize(growths.size() * static_cast<std::size_t>(book.width()));
    if constexpr (has_tile_pages<Book>)
      if (book.has_tile_pages())
        tile_table.resize(growths.size() * static_cast<std::size_t>(book.tile_pages().width()));
  }

  /// Those of one sequence that has so many positions and gets no more.
  template <class Book> void describe(const Book& book, Index slot, Index length) {
    const Growth none[] = {{slot, length, 0}};
    begin(book, none);
    describe(book);
  }

  /// All of them from the growths, for which the book has memory.
  template <class Book> void describe(const Book& book) {
    offsets.assign(1, 0);
    positions.clear();
    lengths.clear();
    to_row.clear();
    for (const Growth& g : growths) {
      offsets.push_back(offsets.back() + g.rows);
      positions.push_back(g.length);
      lengths.push_back(g.length + g.rows);
      for (Index i = 0; i < g.rows; ++i) to_row.push_back(book.row(g.slot, g.length + i));
    }
    if constexpr (has_pages<Book>) {
      list_pages(book, table);
      if constexpr (has_tile_pages<Book>)
        if (book.has_tile_pages()) list_pages(book.tile_pages(), tile_table);
    } else {
      oldest.clear();
      for (std::size_t b = 0; b < growths.size(); ++b) {
        slots[b] = book.block(growths[b].slot);
        oldest.push_back(book.gone(growths[b].slot, lengths[b]).oldest);
      }
    }
  }

  /// Checks a list of rows of the step: ascending, each once.
  void check_kept(std::span<const Index> kept) const {
    const Index rows = static_cast<Index>(to_row.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      require(kept[i] >= 0 && kept[i] < rows, "commit: row ", kept[i], " is outside [0, ", rows,
              "), the rows of the step");
      const Index before = i == 0 ? -1 : kept[i - 1];
      require(before < kept[i], "commit: row ", kept[i], " is named after row ", before, ", expected ascending rows");
    }
  }
  /// Takes from the growths the rows that are not kept. The others close up behind what their sequences had, by copies
  /// in the order of the list, none of which overlaps itself or writes what a later one reads. The list has memory for
  /// as many copies as rows are kept.
  void keep(std::span<const Index> kept, RowCopies& copies) {
    std::size_t next = 0;
    for (std::size_t b = 0; b < growths.size(); ++b) {
      std::size_t row = static_cast<std::size_t>(offsets[b]);
      for (; next < kept.size() && kept[next] < offsets[b + 1]; ++next, ++row) {
        const Index from = to_row[static_cast<std::size_t>(kept[next])], to = to_row[row];
        RowCopy* const last = copies.empty() ? nullptr : &copies.back();
        if (last != nullptr && last->from + last->count == from && last->to + last->count == to &&
            last->count < std::abs(from - to))
          ++last->count;
        else if (from != to)
          copies.push_back({from, to, 1});
      }
      growths[b].rows = static_cast<Index>(row) - offsets[b];
    }
  }

 private:
  template <class Book> static constexpr bool has_pages = requires(const Book& book) { book.width(); };
  template <class Book> static constexpr bool has_tile_pages = requires(const Book& book) { book.tile_pages(); };

  template <class Book> void list_pages(const Book& book, std::vector<Index>& to) const {
    for (std::size_t b = 0; b < growths.size(); ++b) {
      const auto pages = book.pages(growths[b].slot, lengths[b]);
      std::copy(pages.begin(), pages.end(), to.begin() + static_cast<std::ptrdiff_t>(b) * book.width());
    }
  }
};

/// Whether a cache has an open step. Steps refer to their cache, which is not moved while it has one.
struct OpenStep {
  bool there = false;

  OpenStep() = default;
  OpenStep(OpenStep&& other) { other.require_none("move"); }
  OpenStep& operator=(OpenStep&& other) {
    require_none("move");
    other.require_none("move");
    return *this;
  }

  void require_none(const char* call) const {
    require(!there, call, ": a step is open: commit it or let it end first");
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
