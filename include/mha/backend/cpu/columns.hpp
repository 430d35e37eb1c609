// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/check.hpp"
#include "../../core/rounded_weights.hpp"
#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../simd/panel_layout.hpp"

/// What a product multiplies by, in panels of columns.
namespace mha::inline MHA_NAMESPACE::detail::cpu {

template <class T> inline constexpr Index panel_columns = simd::panel_columns<Accumulator<T>>;

/// How many panels hold this many columns.
template <class T> constexpr Index panels_of(Index columns) { return blocks_of(columns, panel_columns<T>); }

/// to (n, panel_columns) = rows [k, k + n) of panel p of a matrix (K, N), zero beyond N.
template <class T> void copy_panel(const TensorView<const T, 2>& matrix, Index p, Index k, Index n, T* to) {
  constexpr Index columns = panel_columns<T>;
  const Index first = p * columns, count = std::min(columns, matrix.extent[1] - first);
  if (count < columns) std::fill_n(to, std::ptrdiff_t{n} * columns, T());
  if (matrix.stride[1] == 1) {
    for (Index d = 0; d < n; ++d) std::copy_n(&matrix(k + d, first), count, to + std::ptrdiff_t{d} * columns);
    return;
  }
  constexpr Index few = 16;  // rows of the panel that stay in the first-level cache while a column is read along them
  for (Index begin = 0; begin < n; begin += few)
    for (Index j = 0; j < count; ++j) {
      const T* from = &matrix(k + begin, first + j);
      T* at = to + std::ptrdiff_t{begin} * columns + j;
      for (Index d = begin; d < std::min(begin + few, n); ++d, from += matrix.stride[0], at += columns) *at = *from;
    }
}

/// Integer of row d and column j of a group, of which the rows before are written.
inline void put_integer(scaled_int8* group, Index d, Index j, std::int8_t integer) {
  group[d * panel_columns<scaled_int8> + j].integer = integer;
}
inline void put_integer(scaled_int4* group, Index d, Index j, std::int8_t integer) {
  std::uint8_t& pair = group[d / 2 * panel_columns<scaled_int4> + j].pair;
  const auto half = static_cast<std::uint8_t>(integer & 15);
  pair = d % 2 == 0 ? half : static_cast<std::uint8_t>(pair | half << 4);
}
/// The same rounded to Q, of a block of the depth: `to` is where the integers of its first group go, behind a scale for
/// each column.
///
/// Formula   WeightRounding's, of the numbers of a column in a group
template <class Q, class W>
void quantize_panel(const TensorView<const W, 2>& matrix, Index p, Index k, Index n, Q* to) {
  constexpr Index columns = panel_columns<Q>, group = simd::panel_group<Q>, few = 16;
  static_assert(panel_columns<W> == columns && group % few == 0);
  W rows[std::size_t{few * columns}];
  for (Index first = 0; first < n; first += group, to += simd::panel_elements<Q>(group)) {
    const Index depth = std::min(group, n - first);
    const auto each = [&](const auto& f) {
      for (Index begin = 0; begin < depth; begin += few) {
        const Index count = std::min(few, depth - begin);
        copy_panel(matrix, p, k + first + begin, count, rows);
        for (Index d = 0; d < count; ++d)
          for (Index j = 0; j < columns; ++j) f(begin + d, j, static_cast<float>(rows[d * columns + j]));
      }
    };
    float farthest[std::size_t{columns}] = {};
    each([&](Index, Index j, float x) { farthest[j] = farther(farthest[j], x); });
    WeightScale<Q> scales[std::size_t{columns}];
    WeightRounding<Q> rounding[std::size_t{columns}];
    for (Index j = 0; j < columns; ++j) {
      rounding[j] = WeightRounding<Q>(farthest[j]);
      scales[j] = WeightScale<Q>(rounding[j].scale);
    }
    std::memcpy(static_cast<void*>(to - simd::panel_lead<Q>), scales, sizeof scales);
    each([&](Index d, Index j, float x) { put_integer(to, d, j, rounding[j].integer(x)); });
  }
}

inline constexpr std::size_t enough_weights = 1 << 18;  // below, waking threads takes longer than copying

/// One matrix as the columns of a product: its panels are packed while they are used, or all before, where many rows
/// meet them; for a single row it is read where it lies if its rows are contiguous.
template <class T> struct LooseColumns {
  TensorView<const T, 2> matrix;
  const Accumulator<T>* biases;  // (panels, panel_columns), null for none
  const T* packed = nullptr;     // (panels, K, panel_columns), null if they are packed while they are used

  const T* panel(Index, Index p, Index k, Index n, T* scratch) const {
    if (packed != nullptr) return packed + (std::ptrdiff_t{p} * matrix.extent[0] + k) * panel_columns<T>;
    copy_panel(matrix, p, k, n, scratch);
    return scratch;
  }
  const Accumulator<T>* bias(Index, Index p) const {
    return biases == nullptr ? nullptr : biases + std::ptrdiff_t{p} * panel_columns<T>;
  }
  bool uses_scratch() const { return packed == nullptr; }
  const TensorView<const T, 2>* rows() const { return matrix.stride[1] == 1 ? &matrix : nullptr; }
};

/// The columns of a product without their type, so that a product is compiled once for each type of what is stored:
/// they are asked once for a panel and a block of the depth. What they are of must outlive them.
///
/// Columns   panel(part, p, k, n, scratch): rows [k, k + n) of panel p of a part, numbers of its type Stored;
///           bias(part, p), null for none; uses_scratch(): whether a panel lies in scratch, else those of a part lie in
///           a row; rows(): the matrix that one row may meet as it is, null if there is none
template <class S> class AnyColumns {
  using A = Accumulator<S>;

 public:
  template <class Columns>
  AnyColumns(const Columns& columns)
      : columns_(&columns),
        panel_([](const void* from, Index part, Index p, Index k, Index n, S* scratch) {
          return static_cast<const Columns*>(from)->panel(part, p, k, n, scratch);
        }),
        bias_([](const void* from, Index part, Index p) { return static_cast<const Columns*>(from)->bias(part, p); }),
        rows_(columns.rows()),
        uses_scratch_(columns.uses_scratch()) {}

  const S* panel(Index part, Index p, Index k, Index n, S* scratch) const {
    return panel_(columns_, part, p, k, n, scratch);
  }
  const A* bias(Index part, Index p) const { return bias_(columns_, part, p); }
  const TensorView<const S, 2>* rows() const { return rows_; }
  bool uses_scratch() const { return uses_scratch_; }

 private:
  const void* columns_;
  const S* (*panel_)(const void*, Index part, Index p, Index k, Index n, S* scratch);
  const A* (*bias_)(const void*, Index part, Index p);
  const TensorView<const S, 2>* rows_;
  bool uses_scratch_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
