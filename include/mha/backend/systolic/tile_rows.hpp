// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "../../core/stored_row.hpp"
#include "../simd/isa.hpp"
#include "../simd/transpose.hpp"
#include "../simd/vector.hpp"
#include "pack.hpp"
#include "tiles.hpp"

/// Rows of queries, keys, values and outputs on their way into and out of the tiles of attention.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

inline bool is_finite(bfloat16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }

/// Where rows of numbers lie: number d of row i at first + i·row_stride + d·stride; of scaled_int8 stride is 1.
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
      bfloat16* chunk = to + i * row_stride;
      for (Index d = 0; d < from.width; d += tile_depth, chunk += chunk_stride) {
        const T* const first = from.first + i * from.row_stride + d * from.stride;
        fetch(first, static_cast<std::uintptr_t>(ahead) * static_cast<std::uintptr_t>(from.row_stride));
        const Index count = std::min(tile_depth, from.width - d);
        if constexpr (std::is_same_v<T, scaled_int8>) {
          float numbers[tile_depth];
          for (Index n = 0; n < tile_depth; ++n) numbers[n] = n < count ? stored_number<float>(first - d, d + n) : 0.0f;
          round_run<1, Isa>(numbers, chunk, 0);
        } else {
          round_elements<1, Isa>(first, from.stride, count, chunk, 0);
        }
      }
    }
  }

 private:
  /// Asks for the number `ahead` of this one; where there is none, a prefetch of an invalid address does not fault.
  MHA_ALWAYS_INLINE static void fetch(const T* number, std::uintptr_t ahead) {
    const std::uintptr_t line = reinterpret_cast<std::uintptr_t>(number) + ahead * sizeof(T);
    __builtin_prefetch(reinterpret_cast<const void*>(line));
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
/// to + t·tile_stride. Says whether a number is NaN or infinite. Meanwhile the next 32 rows are fetched.
struct PackTransposedBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index tiles, bfloat16* to,
                                    std::ptrdiff_t tile_stride, bool* non_finite) {
    constexpr Index width = simd::Vector<std::uint16_t, Isa>::width;
    simd::vector_t<std::uint16_t, Isa> found{};
    Index d = 0;
    for (; d + width <= tiles * tile_side; d += width) columns<Isa, width>(rows + d, stride, d, to, tile_stride, found);
    if (d < tiles * tile_side) columns<Isa, std::min(width, tile_side)>(rows + d, stride, d, to, tile_stride, found);
    for (int i = 0; i < width; ++i) *non_finite |= found[i] >= 0x8000u;
  }

 private:
  /// Columns d to d + Width, as many as a register holds or half of them. Two rows interleaved make a register of words
  /// of four columns of every eight, and one of the other four.
  template <class Isa, Index Width, class Shorts>
  MHA_ALWAYS_INLINE static void columns(const bfloat16* rows, std::ptrdiff_t stride, Index d, bfloat16* to,
                                        std::ptrdiff_t tile_stride, Shorts& found) {
    using Words = simd::vector_t<std::uint32_t, Isa>;
    constexpr Index W = simd::Vector<std::uint32_t, Isa>::width;
    constexpr auto all = std::make_index_sequence<std::size_t{2 * W}>{};
    constexpr std::uint16_t number = 0x7fff, carry = 0x80;  // into the sign, from the exponent of what is not finite
    alignas(64) std::uint32_t pairs[2][std::size_t{tile_side * W}];
    for (Index i = 0; i < tile_side; ++i, rows += 2 * stride) {
      __builtin_prefetch(rows + tile_depth * stride);
      __builtin_prefetch(rows + (tile_depth + 1) * stride);
      Shorts even{}, odd{}, words;
      std::memcpy(&even, rows, Width * sizeof(bfloat16));
      std::memcpy(&odd, rows + stride, Width * sizeof(bfloat16));
      found |= ((even & number) + carry) | ((odd & number) + carry);
      simd::interleave<1, false>(words, even, odd, all);
      simd::store(pairs[0] + i * W, Words(words));
      simd::interleave<1, true>(words, even, odd, all);
      simd::store(pairs[1] + i * W, Words(words));
    }
    for (Index upper = 0; upper < 2; ++upper)
      for (Index pair = 0; pair < tile_side; pair += W) {
        Words r[std::size_t{W}];
        MHA_UNROLL_16
        for (Index i = 0; i < W; ++i) simd::load(r[i], pairs[upper] + (pair + i) * W);
        simd::transpose(r);
        MHA_UNROLL_16
        for (Index i = 0; i < Width / 2; ++i) {
          const Index column = d + i / 4 * 8 + upper * 4 + i % 4;
          bfloat16* const row = to + column / tile_side * tile_stride + column % tile_side * tile_depth;
          simd::store(reinterpret_cast<std::uint32_t*>(row) + pair, r[i]);
        }
      }
  }
};

/// Output rows out of a tile with a row per lane: to ← (from · factor)ᵀ, from (width, lanes) padded to multiples of 16;
/// `rows` is scratch for (lanes, width). A −0 becomes 0: it is a sum that a unit flushed, unless the sum went on over
/// keys that only other rows see.
template <class T> struct StoreRowsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const float* from, const float* factor, Index lanes, float* rows,
                                    StridedRows<T> to) {
    const Index padded = round_up(to.width, tile_side);
    Index paired = 0;
    if constexpr (std::is_same_v<T, bfloat16>)
      if (to.stride == 1) paired = to.width / tile_depth * tile_depth;
    for (Index lane = 0; lane < to.count; lane += tile_side) {
      const Index count = std::min(tile_side, to.count - lane);
      if constexpr (std::is_same_v<T, bfloat16>)
        for (Index d = 0; d < paired; d += tile_depth)
          store_pairs<Isa>(from + std::ptrdiff_t{d} * lanes + lane, factor + lane, lanes, count,
                           to.first + lane * to.row_stride + d, to.row_stride);
      for (Index row = paired; row < padded; row += tile_side) {
        alignas(64) float tile[tile_words];
        for (Index i = 0; i < tile_side; ++i)
          for (Index j = 0; j < tile_side; j += simd::Vector<float, Isa>::width) {
            simd::vector_t<float, Isa> x;
            scaled<Isa>(from + std::ptrdiff_t{row + i} * lanes + lane + j, factor + lane + j, x);
            simd::store(tile + i * tile_side + j, x);
          }
        simd::transpose16<Isa>(reinterpret_cast<const std::uint32_t*>(tile), tile_side,
                               reinterpret_cast<std::uint32_t*>(rows + std::ptrdiff_t{lane} * padded + row), padded);
      }
    }
    for (Index i = 0; i < to.count; ++i)
      for (Index d = paired; d < to.width; ++d)
        to.first[i * to.row_stride + d * to.stride] = static_cast<T>(rows[std::ptrdiff_t{i} * padded + d]);
  }

 private:
  template <class Isa>
  MHA_ALWAYS_INLINE static void scaled(const float* from, const float* factor, simd::vector_t<float, Isa>& x) {
    simd::vector_t<float, Isa> f;
    simd::load(x, from);
    simd::load(f, factor);
    x = x * f + 0.f;
  }

  /// 32 rows of `from` by 16 lanes, `count` of them wanted: rounded before they change places, two to a word.
  template <class Isa>
  MHA_ALWAYS_INLINE static void store_pairs(const float* from, const float* factor, Index lanes, Index count,
                                            bfloat16* to, std::ptrdiff_t row_stride) {
    constexpr Index W = simd::Vector<float, Isa>::width;
    alignas(64) std::uint32_t pairs[tile_words];
    for (Index i = 0; i < tile_side; ++i, from += 2 * lanes)
      for (Index j = 0; j < tile_side; j += W) {
        simd::vector_t<float, Isa> x, y;
        typename simd::Vector<float, Isa>::int_type even, odd;
        scaled<Isa>(from + j, factor + j, x);
        scaled<Isa>(from + lanes + j, factor + j, y);
        nearest_bits<Isa>(x, even);
        nearest_bits<Isa>(y, odd);
        simd::store(pairs + i * tile_side + j, even | odd << 16);
      }
    for (Index lane = 0; lane < count; lane += W)
      for (Index pair = 0; pair < tile_side; pair += W) {
        simd::vector_t<std::uint32_t, Isa> r[std::size_t{W}];
        MHA_UNROLL_16
        for (Index i = 0; i < W; ++i) simd::load(r[i], pairs + (pair + i) * tile_side + lane);
        simd::transpose(r);
        bfloat16* row = to + lane * row_stride + 2 * pair;
        MHA_UNROLL_16
        for (Index i = 0; i < W; ++i, row += row_stride)
          if (lane + i < count) std::memcpy(static_cast<void*>(row), &r[i], sizeof r[i]);
      }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
