// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../simd/isa.hpp"
#include "../simd/vector.hpp"
#include "tiles.hpp"

/// Dense operands in the tiles of tiles.hpp, ragged edges filled with zeros.
///
///   activations   [M / 32][K / 32][2][16 rows][32 k]
///   weights       [N / 32][K / 32][2][16 pairs of k][16 columns][2]
///
/// A panel of either is two tiles wide, as wide as a product is, and streams through memory as K goes on.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Rows and columns of a product's sums: two tiles each way, so that each operand tile loaded is multiplied twice.
inline constexpr Index block_side = 2 * tile_side;

constexpr Index depth_tiles(Index k) { return blocks_of(k, tile_depth); }
constexpr Index strips(Index rows) { return blocks_of(rows, tile_side); }
constexpr Index panels(Index extent) { return blocks_of(extent, block_side); }
/// bfloat16 numbers of a panel, and of a part of a whole operand.
constexpr std::size_t panel_size(Index k) {
  return 2 * static_cast<std::size_t>(depth_tiles(k)) * std::size_t{tile_size};
}
constexpr std::size_t packed_size(Index extent, Index k) {
  return static_cast<std::size_t>(panels(extent)) * panel_size(k);
}

/// 32 floats → Parts × 32 bfloat16, `to_stride` apart: x rounded to nearest even, then what that left over, and so on.
/// Nothing is left over of a part that is not finite.
template <Index Parts, class Isa>
MHA_ALWAYS_INLINE void round_run(const float* from, bfloat16* to, std::ptrdiff_t to_stride) {
  using V = simd::vector_t<float, Isa>;
  using I = typename simd::Vector<float, Isa>::int_type;
  constexpr int W = simd::Vector<float, Isa>::width;
  typedef std::uint16_t Short __attribute__((vector_size(2 * W)));
  for (Index i = 0; i < tile_depth; i += W) {
    V x;
    simd::load(x, from + i);
    for (Index part = 0; part < Parts; ++part) {
      I upper;
      nearest_bits<Isa>(x, upper);
      const Short narrow = __builtin_convertvector(upper, Short);
      std::memcpy(static_cast<void*>(to + part * to_stride + i), &narrow, sizeof narrow);
      if (part + 1 == Parts) break;
      const V rest = x - V(upper << 16);
      x = (upper & 0x7f80u) == 0x7f80u ? V{} : rest;
    }
  }
}

/// Elements `stride` apart, at most 32 of them → Parts × 32 bfloat16, the missing ones 0.
template <Index Parts, class Isa, class T>
MHA_ALWAYS_INLINE void round_elements(const T* from, std::ptrdiff_t stride, Index count, bfloat16* to,
                                      std::ptrdiff_t to_stride) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    static_assert(Parts == 1, "a bfloat16 has nothing left over");
    if (stride == 1 && count == tile_depth) {
      std::memcpy(static_cast<void*>(to), from, sizeof(bfloat16) * tile_depth);
      return;
    }
    for (Index i = 0; i < tile_depth; ++i) to[i] = i < count ? from[i * stride] : bfloat16{};
  } else {
    if constexpr (std::is_same_v<T, float>)
      if (stride == 1 && count == tile_depth) return round_run<Parts, Isa>(from, to, to_stride);
    float wide[tile_depth];
    for (Index i = 0; i < tile_depth; ++i) wide[i] = i < count ? static_cast<float>(from[i * stride]) : 0.f;
    round_run<Parts, Isa>(wide, to, to_stride);
  }
}

/// One strip of activations, half a panel: 16 rows over all k, from a (M, K).
template <Index Parts, class T> struct PackStrip {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TensorView<const T, 2>* a, Index first_row, bfloat16* to,
                                    std::size_t part_size) {
    // Of a row at a time: memory gives some lines in a row faster than each alone.
    constexpr Index run = 8 * tile_depth;
    const Index k_end = a->extent[1], rows = std::min(tile_side, a->extent[0] - first_row);
    for (Index begin = 0; begin < k_end; begin += run)
      for (Index r = 0; r < tile_side; ++r)
        for (Index k = begin; k < std::min(begin + run, k_end); k += tile_depth)
          round_elements<Parts, Isa>(r < rows ? a->pointer(first_row + r, k) : nullptr, a->stride[1],
                                     r < rows ? std::min(tile_depth, k_end - k) : 0,
                                     to + k * (2 * tile_side) + r * tile_depth, static_cast<std::ptrdiff_t>(part_size));
  }
};

/// One panel of weights, 32 columns over all k, from b (K, N): rows are read along whichever axis is contiguous.
template <Index Parts, class T> struct PackPanel {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TensorView<const T, 2>* b, Index first_column, bfloat16* to,
                                    std::size_t part_size) {
    const Index k_end = b->extent[0], columns = std::min(block_side, b->extent[1] - first_column);
    for (Index k = 0; k < k_end; k += tile_depth, to += 2 * tile_size) {
      const Index depth = std::min(tile_depth, k_end - k);
      if (b->stride[0] == 1)
        down<Isa>(*b, k, depth, first_column, columns, to, part_size);
      else
        across<Isa>(*b, k, depth, first_column, columns, to, part_size);
    }
  }

 private:
  /// The parts of 32 elements.
  using Runs = bfloat16[std::size_t{Parts}][std::size_t{block_side}];

  /// Two rows of b make a row of pairs.
  template <class Isa>
  MHA_ALWAYS_INLINE static void across(const TensorView<const T, 2>& b, Index k, Index depth, Index first_column,
                                       Index columns, bfloat16* to, std::size_t part_size) {
    for (Index d = 0; d < tile_depth; d += 2) {
      Runs even, odd;
      row<Isa>(b, k + d, d < depth, first_column, columns, even);
      row<Isa>(b, k + d + 1, d + 1 < depth, first_column, columns, odd);
      for (Index part = 0; part < Parts; ++part) {
        bfloat16* const pairs = to + static_cast<std::size_t>(part) * part_size + d * tile_side;
        for (Index tile = 0; tile < 2; ++tile)
          for (Index j = 0; j < tile_side; ++j) {
            pairs[tile * tile_size + 2 * j] = even[part][tile * tile_side + j];
            pairs[tile * tile_size + 2 * j + 1] = odd[part][tile * tile_side + j];
          }
      }
    }
  }
  template <class Isa>
  MHA_ALWAYS_INLINE static void row(const TensorView<const T, 2>& b, Index k, bool exists, Index first_column,
                                    Index columns, Runs& to) {
    round_elements<Parts, Isa>(exists ? b.pointer(k, first_column) : nullptr, b.stride[1], exists ? columns : 0, to[0],
                               block_side);
  }

  /// Each column of b, as a row of a checkpoint's transposed matrix, is a column of pairs already.
  template <class Isa>
  MHA_ALWAYS_INLINE static void down(const TensorView<const T, 2>& b, Index k, Index depth, Index first_column,
                                     Index columns, bfloat16* to, std::size_t part_size) {
    for (Index j = 0; j < block_side; ++j) {
      Runs column;
      round_elements<Parts, Isa>(j < columns ? b.pointer(k, first_column + j) : nullptr, 1, j < columns ? depth : 0,
                                 column[0], tile_depth);
      for (Index part = 0; part < Parts; ++part) {
        bfloat16* const pairs =
            to + static_cast<std::size_t>(part) * part_size + (j / tile_side) * tile_size + 2 * (j % tile_side);
        for (Index d = 0; d < tile_depth; d += 2)
          std::memcpy(static_cast<void*>(pairs + d * tile_side), &column[part][d], 2 * sizeof(bfloat16));
      }
    }
  }
};

/// Packs rows [16 · strip, 16 · strip + 16) of a into their half of a panel; parts lie part_size elements apart.
template <Index Parts, class T>
void pack_strip(const TensorView<const T, 2>& a, Index strip, bfloat16* to, std::size_t part_size) {
  simd::with_isa(current_isa(),
                 [&](auto isa) { isa.template run<PackStrip<Parts, T>>(&a, strip * tile_side, to, part_size); });
}

/// Packs columns [32 · panel, 32 · panel + 32) of b; parts lie part_size elements apart.
template <Index Parts, class T>
void pack_panel(const TensorView<const T, 2>& b, Index panel, bfloat16* to, std::size_t part_size) {
  simd::with_isa(current_isa(),
                 [&](auto isa) { isa.template run<PackPanel<Parts, T>>(&b, panel * block_side, to, part_size); });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
