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
#include "pack.hpp"
#include "tiles.hpp"

/// Rows of queries, keys, values and outputs on their way into and out of the tiles of attention.
namespace mha::inline v0::detail::systolic {

/// Where rows of numbers lie: number d of row i at first + i·row_stride + d·stride.
template <class T> struct StridedRows {
  T* first;
  std::ptrdiff_t row_stride, stride;
  Index count, width;
};

/// Rows rounded to bfloat16 in chunks of 32 numbers, the last filled with zeros: chunk c of row i at
/// to + i·row_stride + c·chunk_stride. Meanwhile rows `ahead` of them are fetched: those of one head among many are far
/// apart.
template <class T> struct RoundRowsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(StridedRows<const T> from, bfloat16* to, std::ptrdiff_t row_stride,
                                    std::ptrdiff_t chunk_stride, std::ptrdiff_t ahead) {
    for (Index i = 0; i < from.count; ++i) {
      const T* row = from.first + i * from.row_stride;
      bfloat16* chunk = to + i * row_stride;
      for (Index d = 0; d < from.width; d += tile_depth, row += tile_depth * from.stride, chunk += chunk_stride) {
        __builtin_prefetch(row + ahead * from.row_stride);
        round_elements<1, Isa>(row, from.stride, std::min(tile_depth, from.width - d), chunk, 0);
      }
    }
  }
};

template <class T>
void round_rows(IsaLevel level, const StridedRows<const T>& from, bfloat16* to, std::ptrdiff_t row_stride,
                std::ptrdiff_t chunk_stride, std::ptrdiff_t ahead = 32) {
  simd::with_isa(level, [&](auto isa) {
    decltype(isa)::template run<RoundRowsBody<T>>(from, to, row_stride, chunk_stride, ahead);
    return 0;
  });
}

/// B tiles from the rows of Bᵀ: rows (16·columns, 32·steps) `stride` apart → to (steps, columns, 16 pairs, 16).
struct PackColumnsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index columns, Index steps,
                                    std::uint32_t* to) {
    for (Index step = 0; step < steps; ++step)
      for (Index c = 0; c < columns; ++c)
        simd::transpose16<Isa>(
            reinterpret_cast<const std::uint32_t*>(rows + c * tile_side * stride + step * tile_depth), stride / 2,
            to + (step * columns + c) * tile_words, tile_side);
  }
};

/// A tiles of the transposed: rows (32, 16·tiles) `stride` apart, the depth down the rows → tile t at
/// to + t·tile_stride. Says whether a number is NaN or infinite.
struct PackTransposedBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index tiles, bfloat16* to,
                                    std::ptrdiff_t tile_stride, bool* non_finite) {
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    typedef std::uint16_t Short __attribute__((vector_size(2 * W)));
    I found{};
    for (Index t = 0; t < tiles; ++t) {
      alignas(64) std::uint32_t pairs[tile_words];  // (16 pairs of rows, 16)
      for (Index r = 0; r < tile_side; ++r)
        for (Index d = 0; d < tile_side; d += W) {
          const bfloat16* const even = rows + 2 * r * stride + t * tile_side + d;
          Short low, high;
          std::memcpy(&low, even, sizeof low);
          std::memcpy(&high, even + stride, sizeof high);
          const I words = __builtin_convertvector(low, I) | __builtin_convertvector(high, I) << 16;
          found |= (I)((words & 0x7f80u) == 0x7f80u) | (I)((words & 0x7f800000u) == 0x7f800000u);
          simd::store(pairs + r * tile_side + d, words);
        }
      simd::transpose16<Isa>(pairs, tile_side, reinterpret_cast<std::uint32_t*>(to + t * tile_stride), tile_side);
    }
    for (int i = 0; i < W; ++i) *non_finite |= found[i] != 0;
  }
};

/// Output rows out of a tile with a row per lane: to ← (from · factor)ᵀ, from (width, lanes) padded to multiples of 16;
/// `rows` is scratch for (lanes, width). A −0 becomes 0: it is a sum that a unit flushed, unless the sum went on over
/// keys that only other rows see.
template <class T> struct StoreRowsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const float* from, const float* factor, Index lanes, float* rows,
                                    StridedRows<T> to) {
    constexpr int W = simd::Vector<float, Isa>::width;
    const Index padded = round_up(to.width, tile_side);
    for (Index lane = 0; lane < to.count; lane += tile_side)
      for (Index row = 0; row < padded; row += tile_side) {
        alignas(64) float tile[tile_words];
        for (Index i = 0; i < tile_side; ++i)
          for (Index j = 0; j < tile_side; j += W) {
            simd::vector_t<float, Isa> x, f;
            simd::load(x, from + std::ptrdiff_t{row + i} * lanes + lane + j);
            simd::load(f, factor + lane + j);
            x = x * f + 0.f;
            simd::store(tile + i * tile_side + j, x);
          }
        simd::transpose16<Isa>(reinterpret_cast<const std::uint32_t*>(tile), tile_side,
                               reinterpret_cast<std::uint32_t*>(rows + std::ptrdiff_t{lane} * padded + row), padded);
      }
    for (Index i = 0; i < to.count; ++i) {
      const float* const row = rows + std::ptrdiff_t{i} * padded;
      T* const out = to.first + i * to.row_stride;
      Index d = 0;
      if constexpr (std::is_same_v<T, bfloat16>)
        if (to.stride == 1)
          for (; d + tile_depth <= to.width; d += tile_depth) round_run<1, Isa>(row + d, out + d, 0);
      for (; d < to.width; ++d) out[d * to.stride] = static_cast<T>(row[d]);
    }
  }
};

}  // namespace mha::inline v0::detail::systolic
