// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "isa.hpp"
#include "panel_layout.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// What the sums of a product gain along the depth.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Registers of columns that are computed at a time, then what is left of a panel. 32 of 64 bytes have room for a whole
/// panel; short ones are a line of 64 bytes, so that what a block of the depth has of them stays in the first cache,
/// as do the lines or half lines of 16 registers.
template <class Isa> inline constexpr int panel_registers = Isa::registers < 32 ? 2 : short_registers<Isa> ? 4 : 3;

/// Rows that are computed at a time, at most.
template <class Isa>
inline constexpr int panel_rows = Isa::registers == 32 ? 24 / panel_registers<Isa>
                                  : Isa::minimal       ? 4
                                                       : 6;

/// A block of the depth of a panel of S, whose rows begin behind `lead`, the scales of their columns, if S has any.
template <class A, class S> struct PanelSteps {
  /// sum[i] += the row · panel i, of panels that many elements apart.
  template <class Isa, class V, std::size_t Panels, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_row(V (&sum)[Panels][Vectors], const A* row, Index depth, const S* panel,
                                        const S* lead, std::ptrdiff_t apart) {
    constexpr int W = Vector<A, Isa>::width;
    const S* const end = panel + std::ptrdiff_t{depth} * panel_columns<A>;
    for (; panel != end; panel += panel_columns<A>, ++row) {
      V x;
      broadcast(x, *row);
      MHA_UNROLL_4
      for (int i = 0; i < int{Panels}; ++i) {
        MHA_UNROLL_16
        for (int j = 0; j < int{Vectors}; ++j) {
          V column;
          load_columns<Isa>(column, panel + i * apart, lead, i * apart, j * W);
          multiply_add<false>(sum[i][j], x, column);
        }
      }
    }
  }

  /// sum[i] += row i · the panel. A step fetches memory from `next` on, `step` bytes for each register.
  template <class Isa, class V, std::size_t RowCount, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_rows(V (&sum)[RowCount][Vectors], const A* rows, std::ptrdiff_t rows_stride,
                                         Index depth, const S* panel, const S* lead, const char* next,
                                         std::ptrdiff_t step) {
    const S* const end = panel + std::ptrdiff_t{depth} * panel_columns<A>;
    constexpr bool whole = std::is_same_v<A, S> && Isa::register_bytes > 16 && int{RowCount} == panel_rows<Isa> &&
                           int{Vectors} == panel_registers<Isa>;
    if constexpr (whole) {
      // Four steps for each prefetch, where that is enough: at 512 bits 36 instructions for 24 multiply-adds and
      // not 47. It matters most where something else takes a part of what the core can issue.
      // Of NEON's registers g++ would keep some in memory.
      constexpr std::ptrdiff_t line = 64;
      const std::ptrdiff_t ahead = 4 * std::ptrdiff_t{Vectors} * step;
      if (ahead <= line) {
        const S* const last = panel + std::ptrdiff_t{depth / 4 * 4} * panel_columns<A>;
        for (; panel != last; panel += 4 * panel_columns<A>, rows += 4, next += ahead) {
          __builtin_prefetch(next, 0, 2);
          add_products<Isa, true>(sum, rows, rows_stride, panel, lead);
          add_products<Isa, true>(sum, rows + 1, rows_stride, panel + panel_columns<A>, lead);
          add_products<Isa, true>(sum, rows + 2, rows_stride, panel + 2 * panel_columns<A>, lead);
          add_products<Isa, true>(sum, rows + 3, rows_stride, panel + 3 * panel_columns<A>, lead);
        }
      }
    }
    for (; panel != end; panel += panel_columns<A>, ++rows) {
      MHA_UNROLL_8
      for (int j = 0; j < int{Vectors}; ++j, next += step) __builtin_prefetch(next, 0, 2);
      add_products<Isa, whole>(sum, rows, rows_stride, panel, lead);
    }
  }

  /// to (depth, panel_columns) = the panel's numbers.
  template <class Isa> MHA_ALWAYS_INLINE static void widen(const S* panel, const S* lead, Index depth, A* to) {
    constexpr int W = Vector<A, Isa>::width;
    for (Index k = 0; k < depth; ++k, panel += panel_columns<A>, to += panel_columns<A>)
      for (int j = 0; j < panel_columns<A>; j += W) {
        vector_t<A, Isa> v;
        load_columns<Isa>(v, panel, lead, 0, j);
        store(to + j, v);
      }
  }

 private:
  /// A register of the columns of a row; their scales are the floats at `lead` + apart.
  template <class Isa>
  MHA_ALWAYS_INLINE static void load_columns(vector_t<A, Isa>& v, const S* from, const S* lead, std::ptrdiff_t apart,
                                             int first) {
    load_widened<A, Isa>(v, from + first);
    if constexpr (panel_lead<S> != 0) {
      vector_t<A, Isa> scale;
      load(scale, reinterpret_cast<const float*>(lead + apart) + first);
      v = v * scale;
    }
  }

  /// One step of the depth: sum[i] += rows[i · rows_stride] · a row of the panel. The first row's number may come
  /// straight from memory, as its address needs no arithmetic: two loads more, and one instruction fewer.
  template <class Isa, bool FirstFromMemory, class V, std::size_t RowCount, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_products(V (&sum)[RowCount][Vectors], const A* rows, std::ptrdiff_t rows_stride,
                                             const S* panel, const S* lead) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr bool alone = RowCount * Vectors == 1;
    V column[Vectors];
    MHA_UNROLL_8
    for (int j = 0; j < int{Vectors}; ++j) load_columns<Isa>(column[j], panel, lead, 0, j * W);
    multiply_add_all<alone, FirstFromMemory ? int{Vectors} : 1>(sum[0], rows[0], column);
    MHA_UNROLL_16
    for (int i = 1; i < int{RowCount}; ++i) multiply_add_all<alone>(sum[i], rows[i * rows_stride], column);
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
