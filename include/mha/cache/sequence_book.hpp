// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {
class SequenceBook;
}

/// A sequence of a cache, from add() to remove(); one that was removed is never taken for another.
class SequenceId {
 public:
  SequenceId() = default;  ///< no sequence
  friend bool operator==(const SequenceId&, const SequenceId&) = default;
  /// By the time of add(), the earliest first.
  friend std::strong_ordering operator<=>(const SequenceId& a, const SequenceId& b) { return a.serial_ <=> b.serial_; }

 private:
  friend class detail::SequenceBook;
  friend struct std::hash<SequenceId>;
  Index slot_ = -1;
  std::uint64_t serial_ = 0;  ///< no other sequence of the process has it
};

namespace detail {

/// Which sequences a cache has and how long each is.
class SequenceBook {
 public:
  explicit SequenceBook(Index sequences) : slots_(static_cast<std::size_t>(sequences)) {
    free_.reserve(slots_.size());
    all_.reserve(slots_.size());
    for (Index slot = sequences; slot-- > 0;) free_.push_back(slot);
  }

  Index capacity() const { return static_cast<Index>(slots_.size()); }
  Index size() const { return static_cast<Index>(all_.size()); }
  /// The sequences there are, in the order in which they were added.
  std::span<const SequenceId> all() const { return all_; }

  /// A new sequence without positions.
  ///
  /// Errors    CacheFull if the cache has all the sequences that it has memory for
  SequenceId add(const char* call) {
    require_free({CacheRoom::sequences, 1, static_cast<Index>(free_.size()), capacity()}, call, ": the cache has ",
                 size(), " sequences, the limit is ", capacity(),
                 ": remove one first, or make the cache with CacheSizes{.sequences = more}");
    static std::atomic<std::uint64_t> serial{0};
    SequenceId id;
    id.slot_ = free_.back();
    id.serial_ = ++serial;
    free_.pop_back();
    at(id.slot_) = {id.serial_, 0};
    all_.push_back(id);
    return id;
  }

  void remove(Index slot) {
    const auto here = [&](const SequenceId& id) { return id.slot_ == slot; };
    all_.erase(std::find_if(all_.begin(), all_.end(), here));
    at(slot) = {};
    free_.push_back(slot);
  }

  /// Where the sequence's length and memory are kept.
  ///
  /// Errors    ShapeError if it was removed, or is of another cache
  Index slot(const char* call, const SequenceId& id) const { return found(call, id, "the sequence"); }
  /// The same of a call's sequence i.
  Index slot(const char* call, const SequenceId& id, std::size_t i) const { return found(call, id, "sequence ", i); }

  Index length(Index slot) const { return at(slot).length; }
  void set_length(Index slot, Index length) { at(slot).length = length; }

 private:
  struct Slot {
    std::uint64_t serial = 0;  ///< 0: free
    Index length = 0;
  };

  /// `which`: what a sentence calls it.
  template <class... Which> Index found(const char* call, const SequenceId& id, const Which&... which) const {
    require(id.serial_ != 0, call, ": ", which..., " is an empty SequenceId: add() and fork() return one");
    require(id.slot_ < capacity() && at(id.slot_).serial == id.serial_, call, ": ", which...,
            " was removed, or is of another cache");
    return id.slot_;
  }

  Slot& at(Index slot) { return slots_[static_cast<std::size_t>(slot)]; }
  const Slot& at(Index slot) const { return slots_[static_cast<std::size_t>(slot)]; }

  std::vector<Slot> slots_;
  std::vector<Index> free_;
  std::vector<SequenceId> all_;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE

/// A SequenceId may be the key of a std::unordered_map.
template <> struct std::hash<mha::SequenceId> {
  std::size_t operator()(const mha::SequenceId& id) const noexcept { return static_cast<std::size_t>(id.serial_); }
};
