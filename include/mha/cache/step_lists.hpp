// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "../core/check.hpp"
#include "sequence_book.hpp"

/// The lists that a call of a cache is given. They point at the caller's elements, and are used in that call alone.
namespace mha::inline MHA_NAMESPACE::detail {

/// A container, an array or a std::span with elements of type T, one after another in memory.
template <class R, class T>
concept ListOf = std::convertible_to<const R&, std::span<const T>>;

/// What each sequence of a call is or has: a list of SequenceId or Index, in braces too, or one for all.
template <class T> class ListOrOne {
 public:
  template <ListOf<T> R> ListOrOne(const R& list) : all_(list) {}
  ListOrOne(std::initializer_list<T> list) : all_(list.begin(), list.size()) {}
  ListOrOne(const T& one) : all_(&one, 1), is_list_(false) {}

  // Refused in one sentence.
  template <class R>
  requires(!ListOf<R, T> && !std::convertible_to<const R&, T>) ListOrOne(const R&) { refuse<R>(); }
  template <class E>
  requires(!std::convertible_to<const E&, T>) ListOrOne(std::initializer_list<E>) { refuse<E>(); }

  bool is_list() const { return is_list_; }
  std::span<const T> all() const { return all_; }
  const T& operator[](std::size_t sequence) const { return all_[is_list_ ? sequence : 0]; }

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
  bool is_list_ = true;
};

using SequenceList = ListOrOne<SequenceId>;
using RowCounts = ListOrOne<Index>;

}  // namespace mha::inline MHA_NAMESPACE::detail
