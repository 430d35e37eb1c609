// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/check.hpp"
#include "books.hpp"
#include "sequence_book.hpp"
#include "step_lists.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Checks that sequence i of a call, of this length, may get rows.
inline void require_room(const char* call, std::size_t i, Index length, Index rows, Index limit) {
  require(rows <= limit - length, call, ": sequence ", i, " of length ", length, " and ", rows,
          " rows more would be longer than the cache's ", limit);
}

/// The sequences of a call and the rows that a step adds to them, checked. Lists last until the next call, and keep
/// their memory.
class StepPlan {
 public:
  explicit StepPlan(Index sequences) : named_(static_cast<std::size_t>(sequences)) {
    slots_.reserve(named_.size());
    growths_.reserve(named_.size());
  }

  /// The slots of sequences, each of which is named once, unless `again`.
  std::span<const Index> slots(const char* call, const SequenceBook& book, std::span<const SequenceId> sequences,
                               bool again = false) {
    require(!again || sequences.size() <= named_.size(), call, ": ", sequences.size(),
            " sequences are named, the cache has memory for ", named_.size(),
            ": make it with CacheSizes{.sequences = more}");
    slots_.clear();
    std::fill(named_.begin(), named_.end(), false);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Index slot = book.slot(call, sequences[i], i);
      require(again || !named_[static_cast<std::size_t>(slot)], call, ": sequences ",
              std::find(slots_.begin(), slots_.end(), slot) - slots_.begin(), " and ", i, " are the same one");
      named_[static_cast<std::size_t>(slot)] = true;
      slots_.push_back(slot);
    }
    return slots_;
  }

  /// Which of so many beams each of them becomes.
  static std::span<const Index> sources(std::size_t beams, std::span<const Index> from) {
    require(from.size() == beams, "reorder: beams has size ", beams, " but from has size ", from.size());
    for (const Index source : from)
      require(source >= 0 && source < static_cast<Index>(beams), "reorder: source ", source, " is outside [0, ", beams,
              "), the number of beams");
    return from;
  }

  /// What a step adds to them, none of which becomes longer than `limit`. A step that adds nothing may name a sequence
  /// again.
  std::span<const Growth> growths(const char* call, const SequenceBook& book, std::span<const SequenceId> sequences,
                                  const RowCounts& rows, Index limit) {
    require(!rows.is_list() || rows.all().size() == sequences.size(), call, ": sequences has size ", sequences.size(),
            " but rows has size ", rows.all().size());
    bool reads = true;
    for (std::size_t i = 0; i < sequences.size(); ++i) reads = reads && rows[i] == 0;
    slots(call, book, sequences, reads);
    growths_.clear();
    std::int64_t all = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Index length = book.length(slots_[i]);
      require(rows[i] >= 0, call, ": sequence ", i, " has ", rows[i], " rows, the least is 0");
      require_room(call, i, length, rows[i], limit);
      growths_.push_back({slots_[i], length, rows[i]});
      all += rows[i];
    }
    require(all <= longest_axis, call, ": ", all, " rows, the limit is ", longest_axis);
    return growths_;
  }

 private:
  std::vector<Index> slots_;
  std::vector<Growth> growths_;
  std::vector<bool> named_;  ///< (sequences): whether the call has named it
};

}  // namespace mha::inline MHA_NAMESPACE::detail
