// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "../core/check.hpp"
#include "../policy/role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Every sequence of a cache has memory for this many positions.
struct Contiguous {
  Required<Index, "Contiguous: length"> length;
};

/// Every sequence has memory for the window of a mask alone, first + left + 2·rows positions, and may grow to 2³⁰ − 1:
/// the first `first` positions stay, of the others the last left + rows. A step writes to the rest, so that one that is
/// dropped has changed nothing.
///
/// `left` is SlidingWindow's: the keys that a query sees on its left, itself not counted. A step adds `rows` positions
/// to a sequence at most, and as many can be taken back. A layer, and attention over a step's source, refuse a call
/// whose mask may show a position that is gone.
struct Ring {
  Required<Index, "Ring: left"> left;
  Index rows = 1, first = 0;
};

/// All sequences share a pool of pages, each of `page` positions, a power of two from 16 on. A sequence takes one page
/// after another as it grows to `length` positions at most. Forks share pages; the first to write to one copies it.
struct Paged {
  Required<Index, "Paged: pages"> pages;
  Required<Index, "Paged: length"> length;
  Index page = 64;
};

/// How many layers and how many sequences at a time a cache serves.
struct CacheSizes {
  Index layers = 1, sequences = 1;
  /// Every step is planned for sequences as long as the storage allows, so that one can be recorded and replayed:
  /// mha::RecordedStep. Tables of masks and scores, and lengths, are those of so many keys; LeftPadding is refused.
  bool recordable = false;
};

namespace detail {

/// Row numbers of all sequences together stay within an Index.
inline void require_rows_of_all(const char* storage, Index sequences, std::int64_t rows) {
  require(sequences * rows <= longest_axis, storage, ": ", sequences, " sequences of ", rows, " positions are ",
          sequences * rows, ", the limit is ", longest_axis);
}

inline void check_storage(const Contiguous& s, Index sequences) {
  require(s.length > 0, "Contiguous: length is ", s.length.value, ", it must be at least 1");
  require_rows_of_all("Contiguous", sequences, s.length.value);
}
inline void check_storage(const Ring& s, Index sequences) {
  require(s.left >= 0, "Ring: left is ", s.left.value, ", it must be at least 0");
  require(s.rows > 0, "Ring: rows is ", s.rows, ", it must be at least 1");
  require(s.first >= 0, "Ring: first is ", s.first, ", it must be at least 0");
  const std::int64_t all = std::int64_t{s.left} + 2 * std::int64_t{s.rows} + s.first;
  require_rows_of_all("Ring", sequences, all);
}
inline void check_storage(const Paged& s, Index) {
  require(s.pages > 0, "Paged: pages is ", s.pages.value, ", it must be at least 1");
  require(s.page >= 16 && (s.page & (s.page - 1)) == 0, "Paged: page is ", s.page,
          ", it must be a power of two, at least 16");
  require(s.length > 0, "Paged: length is ", s.length.value, ", it must be at least 1");
  const std::int64_t all = std::int64_t{s.pages} * s.page;
  require(all <= longest_axis, "Paged: ", s.pages.value, " pages of ", s.page, " are ", all,
          " positions, the limit is ", longest_axis);
  require(s.length <= longest_axis, "Paged: length is ", s.length.value, ", the limit is ", longest_axis);
}

/// The sentence for what is no storage.
template <class S> constexpr bool check_storage_type() {
  constexpr bool known = requires(const S& storage) { check_storage(storage, Index{}); };
  static_assert(known,
                "mha: a cache is told how it stores positions: mha::Contiguous{.length = n}, mha::Ring{.left = l} or "
                "mha::Paged{.pages = p, .length = n} (see mha/cache/storage.hpp)");
  return known;
}

inline std::string in_words(const Contiguous& s) {
  return "Contiguous, " + std::to_string(s.length) + " positions a sequence";
}
inline std::string in_words(const Ring& s) {
  return "Ring, the last " + std::to_string(s.left + s.rows) + " positions a sequence" +
         (s.first > 0 ? " and the first " + std::to_string(s.first) : "");
}
inline std::string in_words(const Paged& s) {
  return "Paged, " + std::to_string(s.pages) + " pages of " + std::to_string(s.page) + " positions";
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
