// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/check.hpp"
#include "ring_rows.hpp"
#include "storage.hpp"

/// Where a cache keeps the positions of its sequences: integers alone, the same for every layer. A position is kept in
/// a row; a cache has as many rows of keys and of values in each layer as its book has.
namespace mha::inline MHA_NAMESPACE::detail {

/// What a step adds to a sequence: `rows` positions behind the first `length`.
struct Growth {
  Index slot, length, rows;
};

/// Rows come in blocks of one size: row r is row r mod rows of block r / rows.
struct BlockExtents {
  Index blocks, rows;
  Index turning = 0;   ///< rows at the end of a block in which positions go round
  bool pages = false;  ///< whether a sequence has several blocks
};

/// Positions [first, oldest) of a sequence that were written over; `oldest` is 0 while there are none.
struct Gone {
  Index first = 0, oldest = 0;
};

/// Rows [from, from + count) are to be copied to rows [to, to + count), in every layer.
struct RowCopy {
  Index from, to, count;
};
using RowCopies = std::vector<RowCopy>;

/// Checks that a book may do without the positions that a saved sequence does not have.
inline void require_all(bool fits, const Gone& gone) {
  require(fits, "restore: the saved sequence is without positions ", gone.first, " to ", gone.oldest - 1,
          ", but this cache keeps all");
}

/// Checks that a sequence of length `all` may go back to `length`.
template <class Book> void require_rewind(const char* call, const Book& book, Index slot, Index all, Index length) {
  require(length >= 0 && length <= all, call, ": length ", length, " is outside [0, ", all,
          "], the length of the sequence");
  require(length == all || book.can_truncate(slot, length), call, ": a Ring of rows ", book.rewind(),
          " cannot go back to length ", length, " of ", all, ": what its window shows has been dropped");
}

/// Books of blocks: every sequence owns one block of rows, in which positions from `first` on go round. Positions and
/// rows agree modulo `together`, of which a block has whole multiples.
///
/// All books have these members. reserve() gives memory to all growths or throws and changes nothing; commit() or
/// drop() follows it, and nothing else comes between. They are templates over their storage, so that a file without a
/// cache compiles nothing of them.
template <class Storage> class BlockBook {
 public:
  BlockBook(const Storage& s, Index sequences, Index together = 1) : BlockBook(sequences, extent_of(s), together) {}

  BlockExtents extents() const { return {static_cast<Index>(block_of_.size()), rows_.rows, rows_.size()}; }
  /// The most positions that a sequence may have.
  Index limit() const { return limit_; }
  /// How far a sequence can go back at least.
  Index rewind() const { return rewind_; }

  Index row(Index slot, Index position) const { return first_row(slot) + rows_.row(position); }
  Index block(Index slot) const { return at(block_of_, slot); }
  /// Positions below this one are never dropped.
  Index first() const { return ring_.first; }
  /// Nor are their rows, and those up to this one, ever written over.
  Index fixed_rows() const { return rows_.first; }

  /// What is gone of a sequence once its first `length` positions are written.
  Gone gone(Index slot, Index length) const {
    const Index oldest = ring_.oldest(std::max(at(written_, slot), length));
    return {oldest > 0 ? ring_.first : 0, oldest};
  }

  void add(Index slot) { at(written_, slot) = 0; }
  void remove(Index slot) { at(written_, slot) = 0; }

  /// In a ring as far as it goes back, or where it has written over nothing, or to positions that it never writes over.
  bool can_truncate(Index slot, Index length) const {
    const Index written = at(written_, slot);
    return !ring_.turns() || length >= written - rewind_ || length <= ring_.first || ring_.oldest(written) == 0;
  }
  void truncate(Index slot, Index length) {
    if (length <= ring_.first) at(written_, slot) = length;
  }

  /// A new sequence with the first `length` positions of another.
  void fork(Index from, Index to, Index length, RowCopies& copies) {
    const bool all = ring_.turns() && length > ring_.first;
    at(written_, to) = all ? at(written_, from) : length;
    copy_block(first_row(from), first_row(to), at(written_, to), copies);
  }

  /// slots[i] becomes what slots[from[i]] was, whose length is lengths[from[i]]. The copies are made by copy() before
  /// the book changes: it may throw.
  template <class Copy>
  void reorder(std::span<const Index> slots, std::span<const Index> from, std::span<const Index> lengths,
               RowCopies& copies, const Copy& copy) {
    // The first that takes a sequence over takes its block; the others copy into the blocks that are left.
    scratch_.assign(slots.size() * 2, -1);
    Index* const taken_by = scratch_.data();
    Index* const block = taken_by + slots.size();
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (taken_by[from[i]] < 0) {
        taken_by[from[i]] = static_cast<Index>(i);
        block[i] = at(block_of_, slots[static_cast<std::size_t>(from[i])]);
      }
    std::size_t unused = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (block[i] >= 0) continue;
      while (taken_by[unused] >= 0) ++unused;
      block[i] = at(block_of_, slots[unused++]);
      const std::size_t source = static_cast<std::size_t>(from[i]);
      copy_block(first_row(slots[source]), block[i] * rows_.rows,
                 ring_.turns() ? at(written_, slots[source]) : lengths[source], copies);
    }
    copy();
    for (std::size_t i = 0; i < slots.size(); ++i)  // of each source, before any is overwritten
      taken_by[i] = at(written_, slots[static_cast<std::size_t>(from[i])]);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      at(written_, slots[i]) = taken_by[i];
      at(block_of_, slots[i]) = block[i];
    }
  }

  /// Memory for `length` positions of a new sequence, of which [gone.first, gone.oldest) are not there.
  ///
  /// Errors    ShapeError if there is no memory, or a query at `length` might need one that is not there
  void fill(Index slot, Index length, const Gone& gone) {
    if (gone.oldest == 0) {
      at(written_, slot) = length;
      return;
    }
    require_all(ring_.turns(), gone);
    const Index left = ring_.size() - rewind_, needed = std::max(ring_.first, length - left);
    require(gone.first >= ring_.first && gone.oldest <= needed, "restore: the saved sequence is without positions ",
            gone.first, " to ", gone.oldest - 1, ", but this Ring keeps the first ", ring_.first, " and those from ",
            needed, " on");
    at(written_, slot) = std::max(length, gone.oldest + ring_.size());
  }

  void reserve(std::span<const Growth> growths, RowCopies&) {
    for (std::size_t i = 0; i < growths.size(); ++i)
      require(growths[i].rows <= rewind_, "step: sequence ", i, " gets ", growths[i].rows,
              " rows, the limit of this Ring is ", rewind_, ": raise Ring::rows, or give the rows in several steps");
  }
  void commit(std::span<const Growth> growths) {
    for (const Growth& g : growths) at(written_, g.slot) = std::max(at(written_, g.slot), g.length + g.rows);
  }
  void drop() {}

 private:
  /// What a sequence has: `open` rows more than are kept, for a step to write before its commit makes others
  /// dispensable.
  struct Extent {
    RingRows kept;
    Index rewind, limit, open = 0;
  };
  static Extent extent_of(const Contiguous& s) { return {{s.length, s.length}, s.length, s.length}; }
  static Extent extent_of(const Ring& s) {
    return {{s.first + s.left + s.rows, s.first}, s.rows, longest_axis, s.rows};
  }

  BlockBook(Index sequences, const Extent& of, Index together)
      : block_of_(static_cast<std::size_t>(sequences)),
        written_(static_cast<std::size_t>(sequences)),
        ring_(of.kept),
        rows_(RingRows{of.kept.rows + of.open, of.kept.first}.in_multiples(together)),
        rewind_(of.rewind),
        limit_(of.limit) {
    for (Index slot = 0; slot < sequences; ++slot) at(block_of_, slot) = slot;
    scratch_.reserve(block_of_.size() * 2);
  }

  static Index& at(std::vector<Index>& v, Index slot) { return v[static_cast<std::size_t>(slot)]; }
  static const Index& at(const std::vector<Index>& v, Index slot) { return v[static_cast<std::size_t>(slot)]; }

  Index first_row(Index slot) const { return block(slot) * rows_.rows; }
  /// Copies what a block holds of a sequence's first `written` positions.
  void copy_block(Index from, Index to, Index written, RowCopies& copies) const {
    const Index count = std::min(written, rows_.rows);
    if (count > 0) copies.push_back({from, to, count});
  }

  std::vector<Index> block_of_;
  std::vector<Index> written_;  ///< positions that were ever committed, taken back ones included
  std::vector<Index> scratch_;
  RingRows ring_;  ///< what is kept
  RingRows rows_;  ///< where
  Index rewind_, limit_;
};

/// Books of pages with reference counts.
template <class Storage> class PageBook {
 public:
  PageBook(const Storage& s, Index sequences)
      : references_(static_cast<std::size_t>(s.pages)),
        counted_(references_.size()),
        page_(s.page),
        limit_(s.length),
        width_(blocks_of(s.length, s.page)),
        table_(static_cast<std::size_t>(checked_product("Paged", "the table of all sequences' pages",
                                                        {sequences, blocks_of(s.length, s.page)})),
               -1),
        used_(static_cast<std::size_t>(sequences)) {
    free_.reserve(references_.size());
    for (Index page = s.pages; page-- > 0;) free_.push_back(page);
    undo_.reserve(references_.size());
    sorted_.reserve(used_.size());
    spare_.reserve(table_.size());
  }

  BlockExtents extents() const { return {static_cast<Index>(references_.size()), page_, 0, true}; }
  Index limit() const { return limit_; }
  Index rewind() const { return limit_; }
  Index free_pages() const { return static_cast<Index>(free_.size()); }

  Index row(Index slot, Index position) const { return entry(slot, position / page_) * page_ + position % page_; }
  Gone gone(Index, Index) const { return {}; }

  /// The pages that hold a sequence's first positions.
  std::span<const Index> pages(Index slot, Index length) const {
    return {&entry(slot, 0), static_cast<std::size_t>(blocks_of(length, page_))};
  }
  Index width() const { return width_; }

  /// How many pages reserve() takes for the growths. Of those that write to a shared page all but its last owner copy
  /// it.
  Index pages_needed(std::span<const Growth> growths) const {
    std::int64_t needed = 0;
    for (const Growth& g : growths) {
      needed += blocks_of(g.length + g.rows, page_) - blocks_of(g.length, page_);
      if (writes_to_filled(g) && ++counted(last_page(g)) < references(last_page(g))) ++needed;
    }
    for (const Growth& g : growths)
      if (writes_to_filled(g)) counted(last_page(g)) = 0;
    return static_cast<Index>(std::min<std::int64_t>(needed, longest_axis));
  }
  /// How many pages become free if all of the sequences go back to `length`.
  Index pages_freed(std::span<const Index> slots, Index length) const {
    const Index first = blocks_of(length, page_);
    Index freed = 0;
    for (const Index slot : slots)
      for (Index n = first; n < used(slot); ++n)
        if (++counted(entry(slot, n)) == references(entry(slot, n))) ++freed;
    for (const Index slot : slots)
      for (Index n = first; n < used(slot); ++n) counted(entry(slot, n)) = 0;
    return freed;
  }

  void add(Index) {}
  void remove(Index slot) { keep(slot, 0); }
  bool can_truncate(Index, Index) const { return true; }
  void truncate(Index slot, Index length) { keep(slot, blocks_of(length, page_)); }

  void fork(Index from, Index to, Index length, RowCopies&) {
    const Index count = blocks_of(length, page_);
    for (Index i = 0; i < count; ++i) ++references(entry(to, i) = entry(from, i));
    used(to) = count;
  }

  template <class Copy>
  void reorder(std::span<const Index> slots, std::span<const Index> from, std::span<const Index> lengths, RowCopies&,
               const Copy&) {
    spare_.clear();
    for (const Index source : from) {
      const auto pages_of = pages(slots[static_cast<std::size_t>(source)], lengths[static_cast<std::size_t>(source)]);
      for (const Index page : pages_of) ++references(page);
      spare_.insert(spare_.end(), pages_of.begin(), pages_of.end());
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      keep(slots[i], 0);
      used(slots[i]) = blocks_of(lengths[static_cast<std::size_t>(from[i])], page_);
      for (Index n = 0; n < used(slots[i]); ++n) entry(slots[i], n) = spare_[next++];
    }
  }

  /// Memory for `length` positions of a new sequence, or of a fork of another's first `from` ones; of none may be gone.
  void fill(Index slot, Index from, Index length, const Gone& gone, RowCopies& copies) {
    require_all(gone.oldest == 0, gone);
    const Growth rest[] = {{slot, from, length - from}};
    reserve(rest, copies, "restore");
    commit(rest);
  }

  void reserve(std::span<const Growth> growths, RowCopies& copies, const char* call = "step") {
    const CacheRoom room{CacheRoom::pages, pages_needed(growths), free_pages(), static_cast<Index>(references_.size())};
    require_free(room, call, ": ", room.needed, " pages of ", page_, " positions are needed, ", room.free, " of ",
                 room.total, " are free: remove() or truncate() sequences, or make the cache with more pages");
    // Of the owners of a page, the last one left writes to it. That is the longest one, so that what it writes is
    // behind the positions of the others, to which the page returns if the step is dropped.
    sorted_.assign(growths.begin(), growths.end());
    std::sort(sorted_.begin(), sorted_.end(), [](const Growth& a, const Growth& b) { return a.length < b.length; });
    for (const Growth& g : sorted_) {
      if (g.rows == 0) continue;
      const Index last = g.length / page_, filled = g.length % page_;
      if (writes_to_filled(g) && references(entry(g.slot, last)) > 1) {
        const Index shared = entry(g.slot, last);
        take(g.slot, last);
        copies.push_back({shared * page_, entry(g.slot, last) * page_, filled});
        --references(shared);
      }
      for (Index n = blocks_of(g.length, page_); n < blocks_of(g.length + g.rows, page_); ++n) take(g.slot, n);
      used(g.slot) = blocks_of(g.length + g.rows, page_);
    }
  }
  void commit(std::span<const Growth>) { undo_.clear(); }
  void drop() {
    while (!undo_.empty()) {
      const Taken& t = undo_.back();
      give(entry(t.slot, t.index));
      entry(t.slot, t.index) = t.before;
      if (t.before >= 0)
        ++references(t.before);
      else
        used(t.slot) = t.index;
      undo_.pop_back();
    }
  }

 private:
  struct Taken {
    Index slot, index, before;  ///< the page that stood there, -1 for none
  };

  static Index& at(std::vector<Index>& v, Index i) { return v[static_cast<std::size_t>(i)]; }
  static const Index& at(const std::vector<Index>& v, Index i) { return v[static_cast<std::size_t>(i)]; }
  Index& references(Index page) { return at(references_, page); }
  const Index& references(Index page) const { return at(references_, page); }
  Index& counted(Index page) const { return at(counted_, page); }
  Index& used(Index slot) { return at(used_, slot); }
  const Index& used(Index slot) const { return at(used_, slot); }
  std::size_t place(Index slot, Index n) const {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(n);
  }
  Index& entry(Index slot, Index n) { return table_[place(slot, n)]; }
  const Index& entry(Index slot, Index n) const { return table_[place(slot, n)]; }

  /// Whether the first row of a growth goes to a page that has positions already, and which page that is.
  bool writes_to_filled(const Growth& g) const { return g.rows > 0 && g.length % page_ > 0; }
  Index last_page(const Growth& g) const { return entry(g.slot, g.length / page_); }

  void take(Index slot, Index n) {
    const Index page = free_.back();
    free_.pop_back();
    references(page) = 1;
    undo_.push_back({slot, n, n < used(slot) ? entry(slot, n) : -1});
    entry(slot, n) = page;
  }
  void give(Index page) {
    if (--references(page) == 0) free_.push_back(page);
  }
  void keep(Index slot, Index count) {
    for (Index n = count; n < used(slot); ++n) give(entry(slot, n));
    used(slot) = std::min(used(slot), count);
  }

  std::vector<Index> references_, free_;
  mutable std::vector<Index> counted_;  ///< (pages): 0, but within a call
  Index page_, limit_, width_;
  std::vector<Index> table_;  ///< (sequences, width)
  std::vector<Index> used_;   ///< pages of each sequence
  std::vector<Index> spare_;
  std::vector<Growth> sorted_;
  std::vector<Taken> undo_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
