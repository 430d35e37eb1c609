// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../../core/stored_row.hpp"
#include "isa.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// W 16-bit words at any address, each in 32 bits.
template <int W, class I> MHA_ALWAYS_INLINE void load_zero_extended(I& w, const void* from) {
  typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
  const Stored* const stored = static_cast<const Stored*>(from);
#if MHA_WIDE_ASM
  // g++ widens a register's halves apart and joins them.
  if constexpr (sizeof(I) > 16) {
    asm("vpmovzxwd %1, %0" : "=v"(w) : "m"(*stored));
    return;
  }
#endif
  w = __builtin_convertvector(*stored, I);
}

/// A member, because g++ takes no local type of bytes for a vector.
template <int W> struct Bytes { typedef std::int8_t type __attribute__((vector_size(W), aligned(1), may_alias)); };
/// W integers of 8 bits at any address, each in 32 bits.
template <int W, class I> MHA_ALWAYS_INLINE void load_sign_extended(I& w, const void* from) {
  using Stored = typename Bytes<W>::type;
  typedef std::int32_t Signed __attribute__((vector_size(sizeof(I))));
  const Stored* const stored = static_cast<const Stored*>(from);
#if MHA_WIDE_ASM
  if constexpr (sizeof(I) > 16) {
    asm("vpmovsxbd %1, %0" : "=v"(w) : "m"(*stored));
    return;
  }
#endif
  w = I(__builtin_convertvector(*stored, Signed));
}

/// Whether half is converted by an instruction: as its conversion to float and back does it, but a signalling NaN
/// becomes a quiet one.
template <class Isa>
inline constexpr bool has_half = MHA_NEON_ASM || ((MHA_WIDE_ASM || MHA_HALF_VECTORS) && Isa::register_bytes > 16);

#if MHA_NEON_ASM
// For g++, which widens and narrows by NEON one element after another, and half by arithmetic.

/// x = the byte at a place of each word, as a number: word l is 0xffffff + (place << 24), and `bytes` a register.
template <class V, class R, class I> MHA_ALWAYS_INLINE void number_of_bytes(V& x, const R& bytes, const I& places) {
  asm("tbl %0.16b, {%1.16b}, %2.16b\n\tscvtf %0.4s, %0.4s, #24" : "=w"(x) : "w"(bytes), "w"(places));
}
template <class T>
inline constexpr bool widens_by_neon =
    std::is_same_v<T, bfloat16> || std::is_same_v<T, half> || std::is_same_v<T, scaled_int8>;
/// Four numbers.
template <class V, class T> MHA_ALWAYS_INLINE void load_by_neon(V& v, const T* from) {
  if constexpr (std::is_same_v<T, scaled_int8>) {
    typedef std::uint32_t Places __attribute__((vector_size(16)));
    float bytes;
    __builtin_memcpy(&bytes, from, sizeof(bytes));
    number_of_bytes(v, bytes, Places{0x00ffffffu, 0x01ffffffu, 0x02ffffffu, 0x03ffffffu});
  } else {
    double words;
    __builtin_memcpy(&words, from, sizeof(words));
    if constexpr (std::is_same_v<T, bfloat16>)
      asm("shll %0.4s, %1.4h, #16" : "=w"(v) : "w"(words));
    else
      asm("fcvtl %0.4s, %1.4h" : "=w"(v) : "w"(words));
  }
}
/// Four numbers of 16 bits: floats, or words whose low halves bfloat16 are.
template <class T, class V> MHA_ALWAYS_INLINE void store_by_neon(T* to, const V& v) {
  double words;
  if constexpr (std::is_same_v<T, bfloat16>)
    asm("xtn %0.4h, %1.4s" : "=w"(words) : "w"(v));
  else
    asm("fcvtn %0.4h, %1.4s" : "=w"(words) : "w"(v));
  __builtin_memcpy(static_cast<void*>(to), &words, sizeof(words));
}
#endif

/// One register of A from storage T: float and double as they are, bfloat16 and half exactly what their conversion to
/// float gives, NaN payloads included; of scaled_int8 the integers.
template <class A, class Isa, class T> MHA_ALWAYS_INLINE void load_widened(vector_t<A, Isa>& v, const T* from) {
  constexpr int W = Vector<A, Isa>::width;
  if constexpr (std::is_same_v<A, T>) {
    load(v, from);
#if MHA_NEON_ASM
  } else if constexpr (std::is_same_v<A, float> && widens_by_neon<T>) {
    load_by_neon(v, from);
#endif
  } else if constexpr (std::is_same_v<T, scaled_int8>) {
    typedef std::int32_t Signed __attribute__((vector_size(sizeof(vector_t<A, Isa>))));
    typename Vector<A, Isa>::int_type w;
    load_sign_extended<W>(w, from);
    v = __builtin_convertvector(Signed(w), vector_t<A, Isa>);
  } else if constexpr (std::is_same_v<A, float> && (std::is_same_v<T, bfloat16> || std::is_same_v<T, half>)) {
    using V = vector_t<float, Isa>;
    using I = typename Vector<float, Isa>::int_type;
    I w;
#if MHA_WIDE_ASM
    if constexpr (std::is_same_v<T, half> && has_half<Isa>) {
      typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      asm("vcvtph2ps %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const Stored*>(from)));
      return;
    }
#elif MHA_HALF_VECTORS
    if constexpr (std::is_same_v<T, half> && has_half<Isa>) {
      typedef __fp16 Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      v = __builtin_convertvector(*reinterpret_cast<const Stored*>(from), V);
      return;
    }
#endif
    load_zero_extended<W>(w, from);
    if constexpr (std::is_same_v<T, bfloat16>) {
      v = V(w << 16);
    } else {
      typedef std::int32_t Signed __attribute__((vector_size(sizeof(I))));
      const I sign = (w & 0x8000u) << 16, magnitude = w & 0x7fffu;
      const I normal = (magnitude << 13) + 0x38000000u;
      const I endless = (magnitude << 13) | 0x7f800000u;  // infinity and NaN
      const V tiny = __builtin_convertvector(Signed(magnitude), V) * 0x1p-24f;
      const I finite = magnitude < 0x0400u ? I(tiny) : normal;
      v = V(sign | (magnitude < 0x7c00u ? finite : endless));
    }
  } else {
    A wide[std::size_t{W}];
    for (int i = 0; i < W; ++i) wide[i] = static_cast<A>(from[i]);
    load(v, wide);
  }
}

/// The words of bfloat16 in 32 bits each. A NaN is found by its integer: g++ lowers a comparison lane by lane.
template <class Isa>
MHA_ALWAYS_INLINE void round_to_bfloat16(typename Vector<float, Isa>::int_type& words, const vector_t<float, Isa>& v) {
  using I = typename Vector<float, Isa>::int_type;
  typedef std::int32_t Signed __attribute__((vector_size(sizeof(I))));
  const I w = I(v), upper = w >> 16;
  const I nan = I(Signed(0x7f800000u - (w & 0x7fffffffu)) >> 31);
  words = ((upper | 0x40u) & nan) | (((w + 0x7fffu + (upper & 1u)) >> 16) & ~nan);
}

/// One register of A into storage T, rounded as its conversion rounds.
template <class A, class Isa, class T> MHA_ALWAYS_INLINE void store_narrowed(T* to, const vector_t<A, Isa>& v) {
  if constexpr (std::is_same_v<A, T>) {
    store(to, v);
  } else {
    constexpr int W = Vector<A, Isa>::width;
#if MHA_NEON_ASM
    if constexpr (std::is_same_v<A, float> && std::is_same_v<T, half>) {
      return store_by_neon(to, v);
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, bfloat16>) {
      typename Vector<float, Isa>::int_type rounded;
      round_to_bfloat16<Isa>(rounded, v);
      return store_by_neon(to, rounded);
    }
#elif MHA_WIDE_ASM
    if constexpr (std::is_same_v<A, float> && std::is_same_v<T, half> && has_half<Isa>) {
      typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<Stored*>(to)) : "v"(v));
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, bfloat16> && sizeof(v) == 64) {
      typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      typename Vector<float, Isa>::int_type rounded;
      round_to_bfloat16<Isa>(rounded, v);
      asm("vpmovdw %1, %0" : "=m"(*reinterpret_cast<Stored*>(to)) : "v"(rounded));
      return;
    } else if constexpr (std::is_same_v<A, float> && std::is_same_v<T, bfloat16> && sizeof(v) == 32) {
      typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      typename Vector<float, Isa>::int_type rounded;
      round_to_bfloat16<Isa>(rounded, v);
      Stored words;
      asm("vextracti128 $1, %1, %0\n\tvpackusdw %0, %x1, %0" : "=&x"(words) : "x"(rounded));
      *reinterpret_cast<Stored*>(to) = words;
      return;
    }
#elif MHA_HALF_VECTORS
    if constexpr (std::is_same_v<A, float> && std::is_same_v<T, half> && has_half<Isa>) {
      typedef __fp16 Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      *reinterpret_cast<Stored*>(to) = __builtin_convertvector(v, Stored);
      return;
    }
    if constexpr (std::is_same_v<A, float> && std::is_same_v<T, bfloat16>) {
      typedef std::uint16_t Stored __attribute__((vector_size(W * 2), aligned(2), may_alias));
      typename Vector<float, Isa>::int_type rounded;
      round_to_bfloat16<Isa>(rounded, v);
      *reinterpret_cast<Stored*>(to) = __builtin_convertvector(rounded, Stored);
      return;
    }
#endif
    A wide[std::size_t{W}];
    T narrow[std::size_t{W}];
    store(+wide, v);
    for (int i = 0; i < W; ++i) narrow[i] = static_cast<T>(wide[i]);
    for (int i = 0; i < W; ++i) to[i] = narrow[i];
  }
}

/// The scale of a stored row in every lane.
template <class V> MHA_ALWAYS_INLINE void broadcast_scale(V& v, const scaled_int8* row) {
#if MHA_WIDE_ASM
  typedef float Scale __attribute__((aligned(1), may_alias));
  if constexpr (sizeof(V) > 16) {
    asm("vbroadcastss %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const Scale*>(row - row_lead<scaled_int8>)));
    return;
  }
#endif
  broadcast(v, row_scale(row));
}

/// Numbers of a stored row in v, multiplied by the row's scale if it has one.
template <class V, class T> MHA_ALWAYS_INLINE void scale_by_row([[maybe_unused]] V& v, [[maybe_unused]] const T* row) {
  if constexpr (std::is_same_v<T, scaled_int8>) {
    V scale;
    broadcast_scale(scale, row);
    v = v * scale;
  }
}

/// to (n, dim), rows one after another, from n rows of storage at a stride, which of a single row may be any.
template <class A, class T> struct WidenBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* from, std::ptrdiff_t stride, Index n, Index dim, A* to) {
    constexpr int W = Vector<A, Isa>::width;
    for (Index i = 0; i < n; ++i, to += dim) {
      const T* const row = from + i * stride;
      Index d = 0;
      for (; d + W <= dim; d += W) {
        vector_t<A, Isa> v;
        load_widened<A, Isa>(v, row + d);
        scale_by_row(v, row);
        store(to + d, v);
      }
      for (; d < dim; ++d) to[d] = stored_number<A>(row, d);
    }
  }
};

/// The same at the level.
template <class A, class T>
void widen(IsaLevel level, const T* from, std::ptrdiff_t stride, Index n, Index dim, A* to) {
  const auto kernel = with_isa(level, [](auto isa) {
    return &decltype(isa)::template run<WidenBody<A, T>, const T*, std::ptrdiff_t, Index, Index, A*>;
  });
  kernel(from, stride, n, dim, to);
}

/// to (n, dim) in storage precision, rows `to_stride` apart, from n rows at a stride.
template <class A, class T> struct NarrowBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* from, std::ptrdiff_t stride, Index n, Index dim, T* to,
                                    std::ptrdiff_t to_stride) {
    constexpr int W = Vector<A, Isa>::width;
    for (Index i = 0; i < n; ++i, from += stride, to += to_stride) {
      Index d = 0;
      for (; d + W <= dim; d += W) {
        vector_t<A, Isa> v;
        load(v, from + d);
        store_narrowed<A, Isa>(to + d, v);
      }
      for (; d < dim; ++d) to[d] = static_cast<T>(from[d]);
    }
  }
};

template <class A, class T>
using NarrowKernel = void (*)(const A* from, std::ptrdiff_t stride, Index n, Index dim, T* to,
                              std::ptrdiff_t to_stride);
template <class A, class T> NarrowKernel<A, T> narrow_kernel(IsaLevel level) {
  return with_isa(level, [](auto isa) -> NarrowKernel<A, T> {
    return &decltype(isa)::template run<NarrowBody<A, T>, const A*, std::ptrdiff_t, Index, Index, T*, std::ptrdiff_t>;
  });
}

/// to (n, dim), rows `to_stride` apart, = n rows at a stride · factor in storage precision; zeros are +0. dim is a
/// multiple of W. Strides of a single row may be any.
template <class A, class T> struct StoreRowsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* from, std::ptrdiff_t stride, Index n, A factor, Index dim, T* to,
                                    std::ptrdiff_t to_stride) {
    using V = vector_t<A, Isa>;
    V scale;
    broadcast(scale, factor);
    for (Index i = 0; i < n; ++i)
      for (Index d = 0; d < dim; d += Vector<A, Isa>::width) {
        V x;
        load(x, from + i * stride + d);
        x = x * scale;
        round_here(x);
        x = x + A(0);
        store_narrowed<A, Isa>(to + i * to_stride + d, x);
      }
  }
};
/// The same at the level.
template <class A, class T>
void store_rows(IsaLevel level, const A* from, std::ptrdiff_t stride, Index n, A factor, Index dim, T* to,
                std::ptrdiff_t to_stride) {
  const auto kernel = with_isa(level, [](auto isa) {
    return &decltype(isa)::template run<StoreRowsBody<A, T>, const A*, std::ptrdiff_t, Index, A, Index, T*,
                                        std::ptrdiff_t>;
  });
  kernel(from, stride, n, factor, dim, to, to_stride);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
