// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../cache/books.hpp"
#include "../cache/sequence_book.hpp"
#include "../cache/step_lists.hpp"
#include "../cache/storage.hpp"
#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a cache is asked about its pages, if its storage has them: whether a step fits before it is made, and which
/// sequences to remove. The answers are exact. Nothing is allocated.
///
/// Threads   one at a time, as of all that a cache does: a question keeps its lists in the cache
template <class Cache, class Storage> class CachePages {};

template <class Cache> class CachePages<Cache, Paged> {
 public:
  [[nodiscard]] Index free_pages() const { return cache().book_.free_pages(); }

  /// How many pages a step of these rows takes, with the copies of shared pages that it writes to: step() throws a
  /// CacheFull if free_pages() are fewer. add() and fork() take none, and may come before the question.
  ///
  /// Errors    ShapeError as step()
  [[nodiscard]] Index pages_needed(const detail::SequenceList& sequences, const detail::RowCounts& rows) const {
    cache().require_closed("pages_needed");
    return cache().book_.pages_needed(cache().planned("pages_needed", sequences.all(), rows));
  }
  /// So many rows for every sequence.
  [[nodiscard]] Index pages_needed(Index rows) const { return pages_needed(cache().ids(), rows); }

  /// How many pages become free if all of these sequences are removed: those that no other one shares.
  ///
  /// Errors    ShapeError if a sequence is not of this cache or named twice, or a step is open
  [[nodiscard]] Index pages_freed(const detail::SequenceList& sequences) const {
    cache().require_closed("pages_freed");
    return cache().book_.pages_freed(cache().plan_.slots("pages_freed", cache().sequences_, sequences.all()), 0);
  }
  /// The same of one that is truncated to a length.
  [[nodiscard]] Index pages_freed(SequenceId id, Index length) const {
    cache().require_closed("pages_freed");
    const Index slot[] = {cache().sequences_.slot("pages_freed", id)};
    detail::require_rewind("pages_freed", cache().book_, slot[0], cache().length(id), length);
    return cache().book_.pages_freed(slot, length);
  }

 private:
  const Cache& cache() const { return static_cast<const Cache&>(*this); }
};

}  // namespace mha::inline MHA_NAMESPACE
