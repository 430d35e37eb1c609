// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "isa.hpp"
#include "vector.hpp"
#include "widen.hpp"

namespace mha::inline v0::detail::simd {

/// Lane of (a, b) that goes to lane `to` when blocks of `size` lanes change places: the even blocks of both, or the
/// odd.
constexpr int transposed_lane(int to, int size, int width, bool odd) {
  const bool from_b = (to & size) != 0;
  return odd ? (from_b ? width + to : to + size) : (from_b ? width + to - size : to);
}

template <int Size, class V, std::size_t... I>
MHA_ALWAYS_INLINE void exchange_blocks(V& a, V& b, std::index_sequence<I...>) {
  constexpr int width = sizeof...(I);
#if MHA_SHUFFLEVECTOR
  const V even = __builtin_shufflevector(a, b, transposed_lane(int(I), Size, width, false)...);
  b = __builtin_shufflevector(a, b, transposed_lane(int(I), Size, width, true)...);
#else
  const auto lane = [&](int i) { return i < width ? a[i] : b[i - width]; };
  const V even{lane(transposed_lane(int(I), Size, width, false))...};
  b = V{lane(transposed_lane(int(I), Size, width, true))...};
#endif
  a = even;
}

template <int Size, class V, std::size_t W> MHA_ALWAYS_INLINE void transpose_in_place(V (&r)[W]) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < W; ++i)
    if ((i & std::size_t{Size}) == 0) exchange_blocks<Size>(r[i], r[i + Size], std::make_index_sequence<W>{});
  if constexpr (Size > 1) transpose_in_place<Size / 2>(r);
}

/// A square of registers, rows become columns.
template <class V, std::size_t W> MHA_ALWAYS_INLINE void transpose(V (&r)[W]) {
  transpose_in_place<static_cast<int>(W / 2)>(r);
}

/// to (16, 16) = fromᵀ (16, 16) of 32-bit words; the strides are in words.
template <class Isa>
MHA_ALWAYS_INLINE void transpose16(const std::uint32_t* from, std::ptrdiff_t from_stride, std::uint32_t* to,
                                   std::ptrdiff_t to_stride) {
  constexpr int W = Vector<std::uint32_t, Isa>::width;
  for (int i = 0; i < 16; i += W)
    for (int j = 0; j < 16; j += W) {
      vector_t<std::uint32_t, Isa> r[std::size_t{W}];
#pragma GCC unroll 16
      for (int k = 0; k < W; ++k) load(r[k], from + (i + k) * from_stride + j);
      transpose(r);
#pragma GCC unroll 16
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
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) load_widened<A, Isa>(r[i], from + i * stride + d);
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) store(to + (d + i) * lanes, r[i]);
    }
    for (; d < dim; ++d)
      for (int i = 0; i < W; ++i) to[d * lanes + i] = static_cast<A>(from[i * stride + d]);
  }
};

/// A register's lanes of from (dim, lanes) times `factor`, as that many rows of `dim` elements; zeros are +0, so that
/// a row's bits do not depend on the hidden keys its tile visited.
template <class A> struct UnpackBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* from, std::ptrdiff_t lanes, const A* factor, Index dim, A* to,
                                    std::ptrdiff_t stride) {
    constexpr int W = Vector<A, Isa>::width;
    vector_t<A, Isa> scale;
    load(scale, factor);
    Index d = 0;
    for (; d + W <= dim; d += W) {
      vector_t<A, Isa> r[std::size_t{W}];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        load(r[i], from + (d + i) * lanes);
        r[i] = r[i] * scale;
        round_here(r[i]);
        r[i] = r[i] + A(0);
      }
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) store(to + i * stride + d, r[i]);
    }
    for (; d < dim; ++d) {
      A row[std::size_t{W}];
      vector_t<A, Isa> r;
      load(r, from + d * lanes);
      r = r * scale;
      round_here(r);
      r = r + A(0);
      store(row, r);
      for (int i = 0; i < W; ++i) to[i * stride + d] = row[i];
    }
  }
};

}  // namespace mha::inline v0::detail::simd
