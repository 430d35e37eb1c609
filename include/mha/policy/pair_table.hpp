// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"
#include "call_shape.hpp"

/// Tables of one element for each (query, key) pair, of masks and of scores.
namespace mha::inline MHA_NAMESPACE::detail {

/// A (Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk) table as four axes.
template <class T, int Rank> constexpr TensorView<const T, 4> as_pair_table(const TensorView<T, Rank>& v) {
  static_assert(Rank >= 2 && Rank <= 4,
                "mha: a table over (query, key) pairs has 2 to 4 axes (see mha/policy/mask/dense.hpp)");
  return four_axes(v);
}

/// What the error of an axis adds where that is an axis of sequences in a table of fewer than four, or one of
/// sequences and heads.
template <class T> constexpr const char* as_sequences(const TensorView<const T, 4>& v, const CallShape& s, int axis) {
  if (v.extent[0] != 1) return "";
  if (axis == 1 && s.batch > 1 && v.extent[1] == std::int64_t{s.batch} * s.heads)
    return ": three axes are (H, Lq, Lk), a table (B * H, Lq, Lk) is the view mha::view(p, B, H, Lq, Lk)";
  if (v.extent[axis] != s.batch) return "";
  if (axis == 1) return ": three axes are (H, Lq, Lk), a table for each sequence has four, (B, 1, Lq, Lk)";
  if (axis == 2 && v.extent[1] == 1)
    return ": two axes are (Lq, Lk), a row of keys for each sequence has four, (B, 1, 1, Lk)";
  return "";
}

/// The table for one call: axes of extent 1 are repeated (stride 0), all others must have the call's size.
template <class T>
TensorView<const T, 4> broadcast_to_call(TensorView<const T, 4> v, const CallShape& s, const char* policy) {
  const Index expected[4] = {s.batch, s.heads, s.queries, s.keys};
  const char* const axis[4] = {"sequences", "heads", "queries", "keys"};
  require_data(policy, "the table", v);
  for (int a = 0; a < 4; ++a) {
    require(v.extent[a] == expected[a] || v.extent[a] == 1, policy, ": the table has ", v.extent[a], " ", axis[a],
            " but the call has ", expected[a], as_sequences(v, s, a));
    if (v.extent[a] == 1) v.stride[a] = 0;
  }
  return v;
}

/// The table in the memory that f(BorrowedTable) gives for its own, whatever the strides.
template <class T, class F> TensorView<const T, 4> moved_table(TensorView<const T, 4> v, Memory& memory, F&& f) {
  std::ptrdiff_t first = 0, last = 0;
  for (int a = 0; a < 4; ++a) {
    if (v.extent[a] == 0) return v;
    const std::ptrdiff_t reach = (v.extent[a] - 1) * v.stride[a];
    (reach < 0 ? first : last) += reach;
  }
  const BorrowedTable<T> moved = f(BorrowedTable<T>{v.data + first, last - first + 1, memory});
  v.data = moved.data - first;
  memory = moved.memory;
  return v;
}

/// Where a table's owner lies; a bare view tells nothing and counts as the host's.
template <class Table> constexpr Memory table_memory() {
  return may_lie_in<Table, Memory::host>() ? Memory::host : Memory::device;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
