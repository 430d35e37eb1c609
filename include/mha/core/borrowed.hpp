// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

#include "../config.hpp"
#include "check.hpp"

namespace mha::inline v0 {

/// Data that a policy value points at and does not own: lengths, ids, a table.
///
/// Made from a pointer and a size or from a named container; a temporary container is refused, because the pointer
/// would outlive it. `memory` tells a backend where the data lies.
template <class T> struct Borrowed {
  const T* data = nullptr;
  Index size = 0;
  Memory memory = Memory::host;

  Borrowed() = default;
  constexpr Borrowed(const T* first, Index count, Memory where = Memory::host)
      : data(first), size(count), memory(where) {}

  template <class Range>
  requires(!std::same_as<std::remove_cv_t<Range>, Borrowed> &&
           requires(Range & r) {
             { r.data() } -> std::convertible_to<const T*>;
             r.size();
           }) constexpr Borrowed(Range& range)
      : data(range.data()), size(static_cast<Index>(range.size())) {
    if (!std::in_range<Index>(range.size()))
      detail::fail("Borrowed: a container has ", range.size(), " elements, the most is ",
                   std::numeric_limits<Index>::max());
  }

  template <class Range>
  requires(!std::same_as<Range, Borrowed> && !std::is_lvalue_reference_v<Range> && requires(const Range& r) {
    { r.data() } -> std::convertible_to<const T*>;
    r.size();
  }) Borrowed(const Range&& temporary_owner)
  = delete;

  MHA_HOST_DEVICE constexpr const T& operator[](Index i) const { return data[i]; }
};

/// The elements of a table that a policy value points at and does not own, from the first to the last in memory.
template <class T> struct BorrowedTable {
  const T* data = nullptr;
  std::ptrdiff_t size = 0;
  Memory memory = Memory::host;
};

}  // namespace mha::inline v0
