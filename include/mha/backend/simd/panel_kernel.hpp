// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "isa.hpp"
#include "paired_steps.hpp"
#include "panel_layout.hpp"
#include "panel_steps.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// c (n, columns) = before + rows (n, depth) · panel (depth, panel_columns), depth from 1 to depth_block.
///
/// The rows of a panel begin behind the scales of their columns, if S has any; `before` may be c, a bias row at stride
/// 0, or null for none.
template <class A, class S> struct PanelArgs {
  const A* rows;
  std::ptrdiff_t rows_stride;
  const S* panel;
  const void* next;  ///< the panel wanted after this one: fetched to the second-level cache meanwhile
  const A* before;
  std::ptrdiff_t before_stride;
  A* c;
  std::ptrdiff_t c_stride;
  Index n, depth;
  Index columns;                    ///< written ones of a panel, rounded up to a multiple of panel_grain
  std::ptrdiff_t side_by_side = 0;  ///< if not 0: one row meets row_panels whole panels, so many elements apart
  std::ptrdiff_t next_row = panel_row_bytes<S>;  ///< bytes of a row of next
  const S* lead = nullptr;                       ///< set by the kernel: what lies before the panel's rows

  /// Goes on with the columns behind so many.
  MHA_ALWAYS_INLINE void skip(Index more) {
    panel += more;
    c += more;
    before += more;
    if constexpr (is_rounded<S>) lead += more * static_cast<Index>(sizeof(WeightScale<S>));
  }
};

/// Registers that are written together: of short ones a whole line, which takes less code.
template <class Isa>
inline constexpr int panel_grain_registers = Isa::minimal || short_registers<Isa> ? panel_registers<Isa> : 1;

/// The least number of a panel's columns that are written together at a level.
template <class A> Index panel_grain(IsaLevel level) {
  return with_isa(level, [](auto isa) {
    using Isa = decltype(isa);
    return Index{panel_grain_registers<Isa> * Vector<A, Isa>::width};
  });
}

/// Panels that a product of one row is given side by side: chains enough in flight, and streams that the hardware reads
/// ahead.
inline constexpr int row_panels = 4;

/// The dense product of packed weights: a tile of some rows × some registers of columns at a time.
///
/// Numerics  an element is one chain of fused multiply-adds from 0 in the order of the depth, then added to `before`:
///           its bits depend on neither the tile nor the other rows and columns
template <class A, class S> struct PanelBody {
  using Steps = PanelSteps<A, S>;

  template <class Isa> MHA_ALWAYS_INLINE static void run(PanelArgs<A, S> p) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr int wide = panel_registers<Isa>;
    constexpr Index grain = panel_grain_registers<Isa>;
    Index registers = (p.columns + grain * W - 1) / (grain * W) * grain;
    if (p.before == nullptr) {
      p.before = nothing.data;
      p.before_stride = 0;
    }
    p.lead = p.panel - panel_lead<S>;
    if (p.side_by_side != 0) return one_row<Isa>(p);
    p.next_row = p.next_row * wide * W / panel_columns<A>;  // the share of the next panel that each prefetches
    for (; registers >= wide; registers -= wide) {
      all_rows<Isa, wide>(p);
      p.skip(wide * W);
      p.next = static_cast<const char*>(p.next) + p.next_row * p.depth;
    }
    if constexpr (grain == 1) {
      if constexpr (wide == 3)
        if (registers == 2) all_rows<Isa, 2>(p);
      if (registers == 1) all_rows<Isa, 1>(p);
    }
  }

 private:
  /// −0, which changes no number that is added to it: the same instructions with a bias and without.
  struct Nothing {
    A data[std::size_t{row_panels * panel_columns<A>}];
    constexpr Nothing() : data() {
      for (A& x : data) x = A(-0.0);
    }
  };
  static constexpr Nothing nothing{};

  /// Rows of as many panels as the registers have room for; whole ones but where registers are few and short, so that a
  /// line of the cache is read once.
  template <class Isa> MHA_ALWAYS_INLINE static void one_row(PanelArgs<A, S> p) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr int whole = panel_columns<A> / W, panels = Isa::registers == 32 && !short_registers<Isa> ? row_panels : 2;
    constexpr int vectors = std::min(whole, (short_registers<Isa> ? 24 : 12) / panels);
    static_assert(row_panels % panels == 0 && whole % vectors == 0);
    for (int i = 0; i < row_panels; i += panels) {
      PanelArgs<A, S> part = p;
      part.panel += i * p.side_by_side;
      part.lead += i * p.side_by_side;
      part.c += i * whole * W;
      part.before += i * whole * W;
      for (int j = 0; j < whole; j += vectors, part.skip(vectors * W)) one_row<Isa, panels, vectors>(part);
    }
  }
  template <class Isa, int Panels, int Vectors> MHA_ALWAYS_INLINE static void one_row(const PanelArgs<A, S>& p) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    V sum[std::size_t{Panels}][std::size_t{Vectors}];
    MHA_UNROLL_4
    for (int i = 0; i < Panels; ++i) {
      MHA_UNROLL_16
      for (int j = 0; j < Vectors; ++j) sum[i][j] = V{};
    }
    Steps::template add_row<Isa>(sum, p.rows, p.depth, p.panel, p.lead, p.side_by_side);
    MHA_UNROLL_4
    for (int i = 0; i < Panels; ++i) {
      MHA_UNROLL_16
      for (int j = 0; j < Vectors; ++j) {
        const std::ptrdiff_t at = i * std::ptrdiff_t{panel_columns<A>} + j * W;
        V x;
        load(x, p.before + at);
        sum[i][j] = x + sum[i][j];
        store(p.c + at, sum[i][j]);
      }
    }
  }

  template <class Isa, int Vectors> MHA_ALWAYS_INLINE static void all_rows(const PanelArgs<A, S>& p) {
    constexpr int most = panel_rows<Isa>;
    // Tiles of nearly the same height: a last one of one row would be as slow as a whole one. What is left of a panel,
    // and a level that few machines run, has powers of two instead.
    constexpr bool all_heights = !Isa::minimal && Vectors == panel_registers<Isa>;
    const Index left = p.n % most;
    const Index tiles = p.n / most + (all_heights ? (left > 0 ? 1 : 0) : std::popcount(static_cast<unsigned>(left)));
    if (tiles == 0) return;
    // Each tile fetches its share, register by register of a row: all at once would wait for memory in the first.
    const std::ptrdiff_t step = p.next_row / Vectors / tiles;
    const char* next = static_cast<const char*>(p.next);
    for (Index t = 0, first = 0; t < tiles; ++t, next += step * Vectors * p.depth) {
      const Index more = p.n - first;
      const Index rows = all_heights
                             ? (more + (tiles - t) - 1) / (tiles - t)
                             : (more >= most ? most : static_cast<Index>(std::bit_floor(static_cast<unsigned>(more))));
      tile_of<Isa, Vectors, all_heights>(rows, p, first, next, step, std::make_integer_sequence<int, most>{});
      first += rows;
    }
  }

  /// The tile of so many rows. All heights are tried in one function: the compiler optimizes a body once more in each
  /// function that it is inlined into on its way to the kernel.
  template <class Isa, int Vectors, bool AllHeights, int... Fewer>
  MHA_ALWAYS_INLINE static void tile_of(Index rows, const PanelArgs<A, S>& p, Index first, const char* next,
                                        std::ptrdiff_t step, std::integer_sequence<int, Fewer...>) {
    constexpr int most = panel_rows<Isa>;
    static_cast<void>((tile_if<Isa, Vectors, AllHeights, most - Fewer>(rows, p, first, next, step) || ...));
  }
  /// That of RowCount rows, if they are so many and such a tile is compiled.
  template <class Isa, int Vectors, bool AllHeights, int RowCount>
  MHA_ALWAYS_INLINE static bool tile_if(Index rows, const PanelArgs<A, S>& p, Index first, const char* next,
                                        std::ptrdiff_t step) {
    if constexpr (AllHeights || RowCount == panel_rows<Isa> || std::has_single_bit(unsigned{RowCount})) {
      if (rows == RowCount) tile<Isa, RowCount, Vectors>(p, first, next, step);
      return rows == RowCount;
    } else {
      return false;
    }
  }

  template <class Isa, int RowCount, int Vectors>
  MHA_ALWAYS_INLINE static void tile(const PanelArgs<A, S>& p, Index first, const char* next, std::ptrdiff_t step) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    const std::ptrdiff_t rows_stride = p.rows_stride;
    const A* rows = p.rows + first * rows_stride;
    A* const c = p.c + first * p.c_stride;
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) __builtin_prefetch(c + i * p.c_stride + j * W, 1, 3);
    }
    V sum[std::size_t{RowCount}][std::size_t{Vectors}];
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = V{};
    }
    Steps::template add_rows<Isa>(sum, rows, rows_stride, p.depth, p.panel, p.lead, next, step);
    const A* const before = p.before + first * p.before_stride;
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) {
        V x;
        load(x, before + i * p.before_stride + j * W);
        sum[i][j] = x + sum[i][j];
        store(c + i * p.c_stride + j * W, sum[i][j]);
      }
    }
  }
};

/// to (depth, panel_columns) = rows of a panel, of one block of its depth, behind whose lead they lie.
template <class A, class S> struct WidenPanelBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const S* panel, const S* lead, Index depth, A* to) {
    PanelSteps<A, S>::template widen<Isa>(panel, lead, depth, to);
  }
};
/// The same at the level.
template <class A, class S> void widen_panel(IsaLevel level, const S* panel, const S* lead, Index depth, A* to) {
  const auto kernel = with_isa(level, [](auto isa) {
    return &decltype(isa)::template run<WidenPanelBody<A, S>, const S*, const S*, Index, A*>;
  });
  kernel(panel, lead, depth, to);
}

template <class A, class S> using PanelKernel = void (*)(PanelArgs<A, S>);

/// The kernel of a level.
template <class A, class S> PanelKernel<A, S> panel_kernel(IsaLevel level) {
  return with_isa(level, [](auto isa) -> PanelKernel<A, S> { return &decltype(isa)::template run<PanelBody<A, S>>; });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
