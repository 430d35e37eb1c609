// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
