// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>

#include "../core/check.hpp"
#include "sequence_book.hpp"

/// The lists that a call of a cache is given. They point at the caller's elements, and are used in that call alone.
namespace mha::inline MHA_NAMESPACE::detail {

/// A container, an array or a std::span with elements of type T, one after another in memory.
template <class R, class T>
concept ListOf = std::convertible_to<const R&, std::span<const T>>;

/// A list of SequenceId or Index, in braces too.
template <class T> class ElementList {
 public:
  template <ListOf<T> R> ElementList(const R& list) : all_(list) {}
  ElementList(std::initializer_list<T> list) : all_(list.begin(), list.size()) {}

  // Refused in one sentence.
  template <class R>
  requires(!ListOf<R, T> && !std::convertible_to<const R&, T>) ElementList(const R&) { refuse<R>(); }
  template <class E>
  requires(!std::convertible_to<const E&, T>) ElementList(std::initializer_list<E>) { refuse<E>(); }

  std::span<const T> all() const { return all_; }

 private:
  template <class Given> static void refuse() {
    static_assert(!std::same_as<T, SequenceId> || valid<Given>,
                  "mha: the sequences of a call are mha::SequenceId, which cache.add() returns: give one or a list of "
                  "them (see mha/cache/step_lists.hpp)");
    static_assert(!std::same_as<T, Index> || valid<Given>,
                  "mha: the rows of a step and the sources of reorder() are mha::Index (int): copy yours into a "
                  "container of that type (see mha/cache/step_lists.hpp)");
  }

  std::span<const T> all_;
};

/// The sequences of a call: a list, or one.
class SequenceList : public ElementList<SequenceId> {
 public:
  using ElementList::ElementList;
  SequenceList(const SequenceId& one) : ElementList(std::span(&one, 1)) {}
};

/// How many rows each sequence of a call gets: a list, or one number for each.
class RowCounts : public ElementList<Index> {
 public:
  using ElementList::ElementList;
  RowCounts(Index each) : ElementList({}), each_(each) {}

  /// Errors    ShapeError if the list is not of so many sequences
  void require_for(const char* call, std::size_t sequences) const {
    require(each_ || all().size() == sequences, call, ": sequences has size ", sequences, " but rows has size ",
            all().size());
  }
  Index operator[](std::size_t sequence) const { return each_ ? *each_ : all()[sequence]; }

 private:
  std::optional<Index> each_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
