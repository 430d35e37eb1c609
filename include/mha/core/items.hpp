// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Work that falls into rows × columns independent items, which a backend runs in any order and many at once.
///
/// `cost` is about how many numbers one item reads and computes: little work is not worth waking threads for.
///
///   struct Twice {
///     std::ptrdiff_t rows;
///     Index columns, cost = 1;
///     TensorView<float, 2> x;
///     MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const { x(row, column) *= 2; }
///   };
template <class I>
concept Items = requires(const I& items, std::ptrdiff_t row, Index column) {
  { items.rows } -> std::convertible_to<std::ptrdiff_t>;
  { items.columns } -> std::convertible_to<Index>;
  { items.cost } -> std::convertible_to<Index>;
  items(row, column);
};

namespace detail {

/// The items of rows [begin, end), one after another.
///
/// Items that have an order of their own for many rows on the host tell it by a member run_rows(begin, end).
template <Items I> void run_rows(const I& items, std::ptrdiff_t begin, std::ptrdiff_t end) {
  if constexpr (requires { items.run_rows(begin, end); }) {
    items.run_rows(begin, end);
  } else {
    const I local = items;  // what the items write cannot change it, so that the compiler keeps it in registers
    for (std::ptrdiff_t row = begin; row < end; ++row)
      for (Index column = 0; column < local.columns; ++column) local(row, column);
  }
}
template <Items I> void run_serially(const I& items) { run_rows(items, 0, items.rows); }

/// The default runner of items.
struct SerialItems {
  template <Items I> void operator()(const I& items) const { run_serially(items); }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
