// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../simd/isa.hpp"
#include "../simd/transpose.hpp"
#include "../simd/vector.hpp"

/// The two tile shapes of a bfloat16 product. The left operand A lies in tiles of 16 rows × 32 of the depth, by rows.
/// The right operand B lies in tiles of 32 of the depth × 16 columns, as 32-bit words that hold the elements 2i, 2i + 1
/// of one column: (16 pairs, 16 columns). Each tile is 1 KiB of consecutive memory.
namespace mha::inline v0::detail::systolic {

inline constexpr Index tile_side = 16;    ///< rows of an A tile, columns of a B tile
inline constexpr Index tile_depth = 32;   ///< bfloat16 numbers along the depth
inline constexpr Index tile_words = 256;  ///< 32-bit words of a tile
inline constexpr Index tile_size = 512;   ///< bfloat16 numbers of a tile

constexpr Index round_up(Index n, Index to) { return (n + to - 1) / to * to; }

/// The bits of the bfloat16 numbers nearest to x, ties to even, in the low half of each lane.
template <class Isa>
MHA_ALWAYS_INLINE void nearest_bits(const simd::vector_t<float, Isa>& x,
                                    typename simd::Vector<float, Isa>::int_type& to) {
  using I = typename simd::Vector<float, Isa>::int_type;
  const I bits = (I)x, kept = bits >> 16;
  const I rounded = (bits + 0x7fffu + (kept & 1u)) >> 16;
  to = x == x ? rounded : kept | 0x40u;  // a NaN stays one even if only lower bits were set
}

/// to ← the bfloat16 numbers nearest to a register of floats.
template <class Isa> MHA_ALWAYS_INLINE void store_nearest(const simd::vector_t<float, Isa>& x, bfloat16* to) {
  typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes / 2)));
  typename simd::Vector<float, Isa>::int_type bits;
  nearest_bits<Isa>(x, bits);
  const Short narrow = __builtin_convertvector(bits, Short);
  std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
}

/// to ← from rounded to nearest even, n numbers.
struct RoundBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* from, Index n, bfloat16* to) {
    constexpr int W = simd::Vector<float, Isa>::width;
    Index i = 0;
    for (; i + W <= n; i += W) {
      simd::vector_t<float, Isa> x;
      simd::load(x, from + i);
      store_nearest<Isa>(x, to + i);
    }
    for (; i < n; ++i) to[i] = bfloat16(from[i]);
  }
};

/// One row of n numbers, `stride` apart, rounded to bfloat16, and zeros up to `padded`.
template <class T>
void round_row(IsaLevel level, const T* from, std::ptrdiff_t stride, Index n, Index padded, bfloat16* to) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (stride == 1)
      std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(n) * sizeof(bfloat16));
    else
      for (Index d = 0; d < n; ++d) to[d] = from[d * stride];
  } else {
    const auto round = [&](const float* row, Index count, bfloat16* rounded) {
      simd::with_isa(level, [&](auto isa) {
        decltype(isa)::template run<RoundBody>(row, count, rounded);
        return 0;
      });
    };
    if (std::is_same_v<T, float> && stride == 1) {
      if constexpr (std::is_same_v<T, float>) round(from, n, to);
    } else {
      constexpr Index chunk = 128;
      float wide[chunk];
      for (Index d = 0; d < n; d += chunk) {
        const Index count = std::min(chunk, n - d);
        for (Index i = 0; i < count; ++i) wide[i] = static_cast<float>(from[(d + i) * stride]);
        round(wide, count, to + d);
      }
    }
  }
  std::fill(to + n, to + padded, bfloat16{});
}

/// B tiles from the rows of Bᵀ: rows (16·columns, 32·steps) `stride` apart → to (steps, columns, 16 pairs, 16).
struct PackColumnsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index columns, Index steps,
                                    std::uint32_t* to) {
    for (Index step = 0; step < steps; ++step)
      for (Index c = 0; c < columns; ++c)
        simd::transpose16<Isa>(words(rows + c * tile_side * stride + step * tile_depth), stride / 2,
                               to + (step * columns + c) * tile_words, tile_side);
  }

  /// Rows are even numbers of elements apart and of the storage's own alignment, so that pairs are words.
  static const std::uint32_t* words(const bfloat16* p) { return reinterpret_cast<const std::uint32_t*>(p); }
};

/// A tiles of the transposed: rows (32, 16·tiles) `stride` apart, the depth down the rows → tile t at to +
/// t·tile_stride.
struct PackTransposedBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index tiles, bfloat16* to,
                                    std::ptrdiff_t tile_stride) {
    for (Index t = 0; t < tiles; ++t) {
      alignas(64) std::uint32_t pairs[tile_words];  // (16 pairs of rows, 16)
      for (Index r = 0; r < tile_side; ++r) {
        const bfloat16* const even = rows + 2 * r * stride + t * tile_side;
        for (Index d = 0; d < tile_side; ++d)
          pairs[r * tile_side + d] = std::uint32_t{even[d].bits} | std::uint32_t{even[stride + d].bits} << 16;
      }
      simd::transpose16<Isa>(pairs, tile_side, reinterpret_cast<std::uint32_t*>(to + t * tile_stride), tile_side);
    }
  }
};

/// Rows (lanes, n) of what lies in lanes: to ← (from · factor)ᵀ, from (n, lanes); n and lanes are multiples of 16.
struct RowsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const float* from, const float* factor, Index n, Index lanes, float* to) {
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index lane = 0; lane < lanes; lane += tile_side)
      for (Index row = 0; row < n; row += tile_side) {
        alignas(64) float tile[tile_words];
        for (Index i = 0; i < tile_side; ++i)
          for (Index j = 0; j < tile_side; j += W) {
            simd::vector_t<float, Isa> x, f;
            simd::load(x, from + std::ptrdiff_t{row + i} * lanes + lane + j);
            simd::load(f, factor + lane + j);
            x = x * f;
            simd::store(tile + i * tile_side + j, x);
          }
        simd::transpose16<Isa>(reinterpret_cast<const std::uint32_t*>(tile), tile_side,
                               reinterpret_cast<std::uint32_t*>(to + std::ptrdiff_t{lane} * n + row), n);
      }
  }
};

}  // namespace mha::inline v0::detail::systolic
