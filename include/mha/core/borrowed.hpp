// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "check.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// Elements of type T, one after another in memory.
template <class Range, class T>
concept Container = requires(Range& r) {
  { r.data() } -> std::convertible_to<const T*>;
  r.size();
};

}  // namespace detail

/// Data that a policy value points at and does not own: lengths, ids, a table.
///
/// Made from a pointer and a size, from a named container or array of T, or from a std::span, which owns nothing and
/// needs no name; `memory` is the memory that the data is in.
///
/// Errors    ShapeError if an Eigen object's elements do not lie one after another, by rows, or are more than an Index
///           counts
template <class T> struct Borrowed {
  const T* data = nullptr;
  Index size = 0;
  Memory memory = Memory::host;

  Borrowed() = default;
  constexpr Borrowed(const T* first, Index count, Memory where = Memory::host)
      : data(first), size(count), memory(where) {}

  template <detail::Container<T> Range>
  requires(!std::same_as<std::remove_cv_t<Range>, Borrowed>) constexpr Borrowed(Range& range)
      : data(range.data()), size(counted(range.size())) {
    require_adjacent(range);
  }
  template <class U, std::size_t count>
  requires std::same_as<std::remove_cv_t<U>, T>
  constexpr Borrowed(U (&array)[count]) : data(array), size(counted(count)) {}
  template <class U, std::size_t extent>
  requires std::same_as<std::remove_cv_t<U>, T>
  constexpr Borrowed(std::span<U, extent> elements) : data(elements.data()), size(counted(elements.size())) {}

  // Refused in one sentence.
  template <detail::Container<T> Range>
  requires(!std::same_as<Range, Borrowed> && !std::is_lvalue_reference_v<Range>) Borrowed(const Range&&) {
    static_assert(detail::valid<Range>,
                  "mha: a temporary container would be gone before the call reads it: name it first, "
                  "std::vector<int> lengths{5, 2}; mha::Padding{lengths} (see mha/core/borrowed.hpp)");
  }
  template <std::convertible_to<T> U> Borrowed(std::initializer_list<U>) {
    static_assert(detail::valid<U>,
                  "mha: a list in braces would be gone before the call reads it: name a container first, "
                  "std::vector<int> lengths{5, 2}; mha::Padding{lengths} (see mha/core/borrowed.hpp)");
  }
  template <class Range>
  requires(!detail::Container<Range, T> && requires(const Range& r) {
    r.data();
    r.size();
  }) Borrowed(const Range&) {
    static_assert(
        detail::valid<Range>,
        "mha: lengths, ids and offsets are mha::Index (int), a Sink's logits float, a block map std::uint8_t: "
        "copy yours into a container of that type (see mha/core/borrowed.hpp)");
  }

  MHA_HOST_DEVICE constexpr const T& operator[](Index i) const { return data[i]; }

 private:
  /// A row, a column or a block of an Eigen matrix may have its elements apart, and a matrix may have them by columns.
  template <class Range> static constexpr void require_adjacent([[maybe_unused]] const Range& range) {
    if constexpr (requires {
                    range.innerStride() + range.outerStride() + range.innerSize() + range.outerSize();
                    Range::IsRowMajor;
                  }) {
      const auto inner = range.innerSize(), outer = range.outerSize();
      detail::require(inner * outer <= 1 ||
                          ((inner == 1 || range.innerStride() == 1) && (outer == 1 || range.outerStride() == inner)),
                      "Borrowed: ", inner * outer, " elements have strides ", range.innerStride(), " and ",
                      range.outerStride(), ", expected one after another: copy them first");
      detail::require(Range::IsRowMajor || inner <= 1 || outer <= 1, "Borrowed: ", inner, " rows of ", outer,
                      " elements lie by columns, expected by rows: copy them into a row-major matrix first");
    }
  }
  template <class Size> static constexpr Index counted(Size n) {
    if (!std::in_range<Index>(n))
      detail::fail("Borrowed: a container has ", n, " elements, the limit is ", std::numeric_limits<Index>::max());
    return static_cast<Index>(n);
  }
};

/// The elements of a table that a policy value points at and does not own, from the first to the last in memory.
template <class T> struct BorrowedTable {
  const T* data = nullptr;
  std::ptrdiff_t size = 0;
  Memory memory = Memory::host;
};

namespace detail {

/// Any data as it is: an f to ask whether a type has a with_data(f).
struct SameData {
  template <class Data> Data operator()(const Data& data) const { return data; }
};

/// A policy or a source whose borrowed data can be moved.
template <class P>
concept HasData = requires(const P& p, const SameData& f) {
  p.with_data(f);
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
