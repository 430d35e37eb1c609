// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../cache/kv_source.hpp"
#include "../../core/check.hpp"
#include "../../core/workspace.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The blocks of 256 keys of a call's sequences that its source has not dropped altogether, in their order: what is
/// packed and attended to, however many positions a ring has been given.
class HeldBlocks {
 public:
  template <class Call>
  HeldBlocks(const Call& call, Workspace::Frame& frame)
      : first_(frame.template take<std::int64_t>(static_cast<std::size_t>(call.shape.batch) + 1)),
        batch_(call.shape.batch) {
    first_[0] = 0;
    for (Index b = 0; b < batch_; ++b) {
      Index n = 0;
      if (call.kv.drops())
        for_each(call, b, [&](Index) { ++n; });
      else
        n = blocks_of(call.keys(b), value_block);
      first_[b + 1] = first_[b] + n;
      most_ = std::max(most_, n);
    }
    const KvRoom& room = call.kv.room();
    // What a ring holds begins in the middle of a block, and so it does behind its first keys.
    room_ = std::max(most_, blocks_of(std::min(room.keys, longest_axis), value_block) + (call.kv.drops() ? 2 : 0));
    const std::int64_t pool = room.all / value_block + std::int64_t{batch_} * (call.kv.drops() ? 3 : 1);
    room_of_all_ = std::max(all(), room.keys > 0 ? std::min(std::int64_t{batch_} * room_, pool) : 0);
    if (!call.kv.drops()) return;
    numbers_ = frame.template take<Index>(static_cast<std::size_t>(room_of_all_));
    Index* to = numbers_;
    for (Index b = 0; b < batch_; ++b) for_each(call, b, [&](Index block) { *to++ = block; });
  }

  /// Of sequence b, of the longest one and of all, and of those before b.
  Index count(Index b) const { return static_cast<Index>(first_[b + 1] - first_[b]); }
  Index most() const { return most_; }
  std::int64_t all() const { return first_[batch_]; }
  std::int64_t before(Index b) const { return first_[b]; }
  /// That of a block among those of all.
  Index sequence_of(std::int64_t block) const {
    return static_cast<Index>(std::upper_bound(first_, first_ + batch_, block) - first_) - 1;
  }
  /// The most that later calls have, as the source grows to its room: of a sequence, and of all.
  Index room() const { return room_; }
  std::int64_t room_of_all() const { return room_of_all_; }

  /// The first key of the i-th block of sequence b.
  Index key(Index b, Index i) const { return (numbers_ != nullptr ? numbers_[first_[b] + i] : i) * value_block; }
  /// The first block that begins at `key` or behind.
  Index from(Index b, Index key) const {
    const Index block = blocks_of(key, value_block), n = count(b);
    if (numbers_ == nullptr) return std::min(block, n);
    const Index* const begin = numbers_ + first_[b];
    return static_cast<Index>(std::lower_bound(begin, begin + n, block) - begin);
  }

 private:
  template <class Call, class F> static void for_each(const Call& call, Index b, F&& f) {
    const Index keys = call.keys(b);
    for (Index k = call.kv.held(b, 0, keys); k < keys; k = call.kv.held(b, (k / value_block + 1) * value_block, keys))
      f(k / value_block);
  }

  std::int64_t* first_;       ///< (batch + 1)
  Index* numbers_ = nullptr;  ///< of all sequences, null where none is left out
  Index batch_, most_ = 0, room_;
  std::int64_t room_of_all_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
