// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "../../config.hpp"
#include "vector.hpp"
#include "widen.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

// A register is `lanes` blocks of 16 bytes, the reach of the cheap shuffles: a square is transposed block by block,
// then the blocks change places.

template <class V> inline constexpr int block_elements = 16 / static_cast<int>(sizeof(V{}[0]));
template <class V> inline constexpr int blocks_in = static_cast<int>(sizeof(V)) / 16;

/// Element of (a, b) at `to` when pieces of `size` elements alternate, from the lower or the upper half of each block.
constexpr int interleaved_element(int to, int block, int size, int width, bool upper) {
  const int at = to % block, piece = at / size;
  return to - at + (upper ? block / 2 : 0) + piece / 2 * size + at % size + (piece % 2 != 0 ? width : 0);
}
/// Element of (a, b) at `to` when every second block of a, from the first or the second on, is followed by those of b.
constexpr int every_second_block(int to, int block, int width, bool second) {
  const int half = width / 2, in_half = to % half;
  return in_half / block * 2 * block + (second ? block : 0) + in_half % block + (to < half ? 0 : width);
}

template <int Size, bool Upper, class V, std::size_t... I>
MHA_ALWAYS_INLINE void interleave(V& to, const V& a, const V& b, std::index_sequence<I...>) {
  shuffle<interleaved_element(int(I), block_elements<V>, Size, static_cast<int>(sizeof...(I)), Upper)...>(to, a, b);
}
template <bool Second, class V, std::size_t... I>
MHA_ALWAYS_INLINE void take_blocks(V& to, const V& a, const V& b, std::index_sequence<I...>) {
  shuffle<every_second_block(int(I), block_elements<V>, static_cast<int>(sizeof...(I)), Second)...>(to, a, b);
}

/// Element c of block l of r[i] becomes element i of block l of r[c], for as many registers as a block has elements.
template <class V> MHA_ALWAYS_INLINE void transpose_blocks(V* r) {
  constexpr auto all = std::make_index_sequence<sizeof(V) / sizeof(V{}[0])>{};
  V a, b;
  interleave<1, false>(a, r[0], r[1], all);
  interleave<1, true>(b, r[0], r[1], all);
  if constexpr (block_elements<V> == 2) {
    r[0] = a;
    r[1] = b;
  } else {
    static_assert(block_elements<V> == 4);
    V c, d;
    interleave<1, false>(c, r[2], r[3], all);
    interleave<1, true>(d, r[2], r[3], all);
    interleave<2, false>(r[0], a, c, all);
    interleave<2, true>(r[1], a, c, all);
    interleave<2, false>(r[2], b, d, all);
    interleave<2, true>(r[3], b, d, all);
  }
}

/// A square of registers, rows become columns.
template <class V, std::size_t W> MHA_ALWAYS_INLINE void transpose(V (&r)[W]) {
  constexpr auto all = std::make_index_sequence<W>{};
  constexpr int n = block_elements<V>, blocks = blocks_in<V>;
  MHA_UNROLL_8
  for (int l = 0; l < blocks; ++l) transpose_blocks(r + l * n);
  MHA_UNROLL_4
  for (int c = 0; c < n; ++c) {
    if constexpr (blocks == 2) {
      V first;
      take_blocks<false>(first, r[c], r[n + c], all);
      take_blocks<true>(r[n + c], r[c], r[n + c], all);
      r[c] = first;
    } else if constexpr (blocks == 4) {
      V even, odd, more_even, more_odd;
      take_blocks<false>(even, r[c], r[n + c], all);
      take_blocks<true>(odd, r[c], r[n + c], all);
      take_blocks<false>(more_even, r[2 * n + c], r[3 * n + c], all);
      take_blocks<true>(more_odd, r[2 * n + c], r[3 * n + c], all);
      take_blocks<false>(r[c], even, more_even, all);
      take_blocks<false>(r[n + c], odd, more_odd, all);
      take_blocks<true>(r[2 * n + c], even, more_even, all);
      take_blocks<true>(r[3 * n + c], odd, more_odd, all);
    }
  }
}

/// v = the half registers at `lower` and `upper`, of any alignment. Both come from memory, where joining costs no
/// shuffle.
template <class V> MHA_ALWAYS_INLINE void load_halves(V& v, const void* lower, const void* upper) {
  typedef std::uint8_t Half __attribute__((vector_size(sizeof(V) / 2), aligned(1), may_alias));
  const Half &low = *static_cast<const Half*>(lower), &high = *static_cast<const Half*>(upper);
#if MHA_WIDE_ASM
  // g++ would join them element by element, not knowing the registers of its caller yet.
  if constexpr (sizeof(V) == 64) {
    asm("vmovups %1, %t0\n\tvinsertf64x4 $1, %2, %0, %0" : "=&v"(v) : "m"(low), "m"(high));
    return;
  } else if constexpr (sizeof(V) == 32) {
    asm("vmovups %1, %x0\n\tvinsertf128 $1, %2, %0, %0" : "=&x"(v) : "m"(low), "m"(high));
    return;
  }
#endif
  __builtin_memcpy(&v, &low, sizeof(Half));
  __builtin_memcpy(reinterpret_cast<char*>(&v) + sizeof(Half), &high, sizeof(Half));
}

/// Columns that load_columns() makes at a time: as many as half registers hold, or a block.
template <class V> inline constexpr int columns_at_once = block_elements<V>*(blocks_in<V> == 4 ? 2 : 1);

/// r[c] = element c of as many rows as a register has lanes, `stride` bytes apart.
template <class V>
MHA_ALWAYS_INLINE void load_columns(V (&r)[std::size_t{columns_at_once<V>}], const char* from, std::ptrdiff_t stride) {
  constexpr int n = block_elements<V>, blocks = blocks_in<V>;
  if constexpr (blocks == 1) {
    MHA_UNROLL_4
    for (int x = 0; x < n; ++x) __builtin_memcpy(&r[x], from + x * stride, sizeof(V));
  } else if constexpr (blocks == 2) {
    const char* const upper = from + n * stride;
    MHA_UNROLL_4
    for (int x = 0; x < n; ++x) load_halves(r[x], from + x * stride, upper + x * stride);
  } else {
    constexpr auto all = std::make_index_sequence<sizeof(V) / sizeof(V{}[0])>{};
    MHA_UNROLL_4
    for (int x = 0; x < n; ++x) {
      const char* const row = from + x * stride;
      V a, b;
      load_halves(a, row, row + n * stride);
      load_halves(b, row + 2 * n * stride, row + 3 * n * stride);
      take_blocks<false>(r[x], a, b, all);
      take_blocks<true>(r[n + x], a, b, all);
    }
    transpose_blocks(r + n);
  }
  transpose_blocks(+r);
}

/// to (16, 16) = fromᵀ (16, 16) of 32-bit words; the strides are in words.
template <class Isa>
MHA_ALWAYS_INLINE void transpose16(const std::uint32_t* from, std::ptrdiff_t from_stride, std::uint32_t* to,
                                   std::ptrdiff_t to_stride) {
  constexpr int W = Vector<std::uint32_t, Isa>::width;
  for (int i = 0; i < 16; i += W)
    for (int j = 0; j < 16; j += W) {
      vector_t<std::uint32_t, Isa> r[std::size_t{W}];
      MHA_UNROLL_16
      for (int k = 0; k < W; ++k) load(r[k], from + (i + k) * from_stride + j);
      transpose(r);
      MHA_UNROLL_16
      for (int k = 0; k < W; ++k) store(to + (j + k) * to_stride + i, r[k]);
    }
}

/// to (dim, lanes), one register of lanes wide, from as many rows of `dim` elements, widened.
template <class A, class T> struct PackBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* from, std::ptrdiff_t stride, Index dim, A* to, std::ptrdiff_t lanes) {
    constexpr int W = Vector<A, Isa>::width;
    Index d = 0;
    for (; d + W <= dim; d += W) {
      vector_t<A, Isa> r[std::size_t{W}];
      MHA_UNROLL_16
      for (int i = 0; i < W; ++i) load_widened<A, Isa>(r[i], from + i * stride + d);
      transpose(r);
      MHA_UNROLL_16
      for (int i = 0; i < W; ++i) store(to + (d + i) * lanes, r[i]);
    }
    for (; d < dim; ++d)
      for (int i = 0; i < W; ++i) to[d * lanes + i] = static_cast<A>(from[i * stride + d]);
  }
};

/// A register's lanes of from (dim, lanes) times `factor`, as that many rows of `dim` elements, narrowed; zeros are
/// +0, so that a row's bits do not depend on the hidden keys its tile visited.
template <class A, class T> struct UnpackBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* from, std::ptrdiff_t lanes, const A* factor, Index dim, T* to,
                                    std::ptrdiff_t stride) {
    constexpr int W = Vector<A, Isa>::width;
    vector_t<A, Isa> scale;
    load(scale, factor);
    Index d = 0;
    for (; d + W <= dim; d += W) {
      vector_t<A, Isa> r[std::size_t{W}];
      MHA_UNROLL_16
      for (int i = 0; i < W; ++i) {
        load(r[i], from + (d + i) * lanes);
        r[i] = r[i] * scale;
        round_here(r[i]);
        r[i] = r[i] + A(0);
      }
      transpose(r);
      MHA_UNROLL_16
      for (int i = 0; i < W; ++i) store_narrowed<A, Isa>(to + i * stride + d, r[i]);
    }
    for (; d < dim; ++d) {
      A row[std::size_t{W}];
      vector_t<A, Isa> r;
      load(r, from + d * lanes);
      r = r * scale;
      round_here(r);
      r = r + A(0);
      store(row, r);
      for (int i = 0; i < W; ++i) to[i * stride + d] = static_cast<T>(row[i]);
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
