// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../simd/isa.hpp"
#include "../simd/vector.hpp"

/// Operands as matrix units read them: bfloat16 in tiles of 1 KiB, ragged edges filled with zeros.
///
///   activations   [M / 32][K / 32][2][16 rows][32 k]
///   weights       [N / 32][K / 32][2][16 pairs of k][16 columns][2]
///
/// A block of both is 32 wide, two tiles side by side, and streams through memory as K goes on.
namespace mha::inline v0::detail::systolic {

inline constexpr Index tile_side = 16;              ///< rows of activations, columns of weights
inline constexpr Index tile_depth = 32;             ///< k of a tile
inline constexpr Index block_side = 2 * tile_side;  ///< rows or columns of a block
inline constexpr Index tile_size = tile_side * tile_depth;
inline constexpr Index block_size = 2 * tile_size;

constexpr Index blocks(Index extent) { return (extent + block_side - 1) / block_side; }
constexpr Index depth_tiles(Index k) { return (k + tile_depth - 1) / tile_depth; }
/// bfloat16 elements of a packed operand, per part.
constexpr std::size_t packed_size(Index extent, Index k) {
  return static_cast<std::size_t>(blocks(extent)) * static_cast<std::size_t>(depth_tiles(k)) * std::size_t{block_size};
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
      const I w = (I)x;
      const I nearest = (w + 0x7fffu + ((w >> 16) & 1u)) >> 16;
      const I upper = x != x ? (w >> 16) | 0x40u : nearest;
      const Short narrow = __builtin_convertvector(upper, Short);
      std::memcpy(static_cast<void*>(to + part * to_stride + i), &narrow, sizeof narrow);
      if (part + 1 == Parts) break;
      const V rest = x - (V)(upper << 16);
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

/// One block of activations, 32 rows over all k, from a (M, K).
template <Index Parts, class T> struct PackRows {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TensorView<const T, 2>* a, Index first_row, bfloat16* to,
                                    std::size_t part_size) {
    const Index k_end = a->extent[1];
    for (Index r = 0; r < block_side; ++r) {
      bfloat16* row = to + (r / tile_side) * tile_size + (r % tile_side) * tile_depth;
      const Index i = first_row + r;
      for (Index k = 0; k < k_end; k += tile_depth, row += block_size)
        if (i < a->extent[0])
          round_elements<Parts, Isa>(a->pointer(i, k), a->stride[1], std::min(tile_depth, k_end - k), row,
                                     static_cast<std::ptrdiff_t>(part_size));
        else
          for (Index part = 0; part < Parts; ++part)
            std::memset(static_cast<void*>(row + static_cast<std::size_t>(part) * part_size), 0,
                        sizeof(bfloat16) * tile_depth);
    }
  }
};

/// One block of weights, 32 columns over all k, from b (K, N): rows are read along whichever axis is contiguous.
template <Index Parts, class T> struct PackColumns {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TensorView<const T, 2>* b, Index first_column, bfloat16* to,
                                    std::size_t part_size) {
    const Index k_end = b->extent[0], columns = std::min(block_side, b->extent[1] - first_column);
    for (Index k = 0; k < k_end; k += tile_depth, to += block_size) {
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

/// Packs rows [32 · block, 32 · block + 32) of a; parts lie part_size elements apart.
template <Index Parts, class T>
void pack_rows(const TensorView<const T, 2>& a, Index block, bfloat16* to, std::size_t part_size) {
  simd::with_isa(current_isa(),
                 [&](auto isa) { isa.template run<PackRows<Parts, T>>(&a, block * block_side, to, part_size); });
}

/// Packs columns [32 · block, 32 · block + 32) of b; parts lie part_size elements apart.
template <Index Parts, class T>
void pack_columns(const TensorView<const T, 2>& b, Index block, bfloat16* to, std::size_t part_size) {
  simd::with_isa(current_isa(),
                 [&](auto isa) { isa.template run<PackColumns<Parts, T>>(&b, block * block_side, to, part_size); });
}

}  // namespace mha::inline v0::detail::systolic
