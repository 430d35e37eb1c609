// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "books.hpp"
#include "storage.hpp"

/// Books of caches that keep tiles of a matrix unit beside their rows.
namespace mha::inline MHA_NAMESPACE::detail {

/// What tiles ask of a cache: rows `rows` by `rows` side by side, at positions and rows that agree modulo it, positions
/// `positions` by `positions` in one place, and keys of whole multiples of `depth` numbers.
struct TileExtents {
  Index rows = 1, positions = 1, depth = 1;
};

/// A book of pages, and where these are shorter than `positions` a second one, of the pages that have the tiles of the
/// same positions. Both are told the same, so that a page of tiles is shared, and copied by who writes to it, as those
/// of rows are.
///
/// There are pages of tiles enough for all that rows have pages for. Of one that is full to an owner the last page of
/// rows is nobody's who has another in its place; so there are as many as last pages, which are one of every n pages
/// and one more for each place where sequences part. Of those that are full to nobody every sequence has one at most.
template <class Storage> class TiledPageBook : public PageBook<Storage> {
 public:
  using Book = PageBook<Storage>;

  TiledPageBook(const Storage& s, Index sequences, Index positions) : Book(s, sequences) {
    if (s.page < positions) tiles_.emplace(checked(pages_of_tiles(s, sequences, positions), sequences), sequences);
    tile_copies_.reserve(static_cast<std::size_t>(sequences));
  }

  /// Where tiles are kept, and whether that is not where rows are.
  const Book& tile_pages() const { return tiles_ ? *tiles_ : *this; }
  bool has_tile_pages() const { return tiles_.has_value(); }
  /// What is to be copied of tiles when `rows` are.
  RowCopies& copies_of_tiles(RowCopies& rows) { return tiles_ ? tile_copies_ : rows; }

  void add(Index slot) {
    both([&](Book& book) { book.add(slot); });
  }
  void remove(Index slot) {
    both([&](Book& book) { book.remove(slot); });
  }
  void truncate(Index slot, Index length) {
    both([&](Book& book) { book.truncate(slot, length); });
  }
  void fork(Index from, Index to, Index length, RowCopies& copies) {
    both([&](Book& book) { book.fork(from, to, length, of(book, copies)); });
  }
  template <class Copy>
  void reorder(std::span<const Index> slots, std::span<const Index> from, std::span<const Index> lengths,
               RowCopies& copies, const Copy& copy) {
    both([&](Book& book) { book.reorder(slots, from, lengths, of(book, copies), copy); });
  }
  void fill(Index slot, Index from, Index length, const Gone& gone, RowCopies& copies) {
    both([&](Book& book) { book.fill(slot, from, length, gone, of(book, copies)); });
  }
  void reserve(std::span<const Growth> growths, RowCopies& copies) {
    both([&](Book& book) { book.reserve(growths, of(book, copies)); });
  }
  void commit(std::span<const Growth> growths) {
    both([&](Book& book) { book.commit(growths); });
  }
  void drop() {
    both([](Book& book) { book.drop(); });
  }

 private:
  static Storage pages_of_tiles(const Storage& s, Index sequences, Index positions) {
    const std::int64_t shared = std::int64_t{blocks_of(s.pages, positions / s.page)} + 2 * std::int64_t{sequences},
                       alone = std::int64_t{blocks_of(s.length, positions)} * sequences;
    return {.pages = static_cast<Index>(std::min({shared, alone, std::int64_t{longest_axis}})),
            .length = s.length,
            .page = positions};
  }
  static const Storage& checked(const Storage& s, Index sequences) {
    check_storage(s, sequences);
    return s;
  }

  /// Rows first: what may throw.
  template <class F> void both(const F& f) {
    f(*this);
    if (tiles_) f(*tiles_);
  }
  RowCopies& of(const Book& book, RowCopies& rows) { return &book == this ? rows : tile_copies_; }

  std::optional<Book> tiles_;
  RowCopies tile_copies_;
};

/// How the rows of a cache are kept that has these tiles, or none.
template <class Storage> auto book_of(const Storage& storage, Index sequences, const TileExtents& tiles) {
  if constexpr (std::same_as<Storage, Paged>)
    return TiledPageBook(storage, sequences, tiles.positions);
  else
    return BlockBook(storage, sequences, tiles.rows);
}
template <class Storage> using BookOf = decltype(book_of(std::declval<const Storage&>(), Index{}, TileExtents{}));

template <class S> BlockExtents extents_of_tiles(const BlockBook<S>& book) { return book.extents(); }
template <class S> BlockExtents extents_of_tiles(const TiledPageBook<S>& book) { return book.tile_pages().extents(); }

/// What is to be copied of tiles when rows are.
template <class S> RowCopies& copies_of_tiles(BlockBook<S>&, RowCopies& rows) { return rows; }
template <class S> RowCopies& copies_of_tiles(TiledPageBook<S>& book, RowCopies& rows) {
  return book.copies_of_tiles(rows);
}

}  // namespace mha::inline MHA_NAMESPACE::detail
