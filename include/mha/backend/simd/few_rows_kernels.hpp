// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "exp2.hpp"
#include "line_ranges.hpp"
#include "transpose.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// The inner loops of a tile of few rows over many keys, the shape of decoding: bound by reading keys and values, so
/// every element is loaded once for up to eight rows, straight from storage, and what comes next is on its way
/// meanwhile.
///
/// Logits and weights lie in rows, with keys in lanes. Each chain of additions runs over the same elements in the same
/// order as in tile_kernels.hpp: the bits are the same.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Of W pairs of bfloat16 elements the first ones, or the second, widened.
template <class V, class I> MHA_ALWAYS_INLINE void first_of_pairs(V& x, const I& pairs) { x = V(pairs << 16); }
template <class V, class I> MHA_ALWAYS_INLINE void second_of_pairs(V& x, const I& pairs) { x = V(pairs & 0xffff0000u); }

/// Elements of T that are loaded as a word of 32 bits and taken out of it: widening memory would take longer.
template <class A, class T>
inline constexpr int in_word = !std::is_same_v<A, float>        ? 1
                               : std::is_same_v<T, bfloat16>    ? 2
                               : std::is_same_v<T, scaled_int8> ? 4
                                                                : 1;
/// The i-th element of each word, widened; of scaled_int8 the integer.
template <int Count, class V, class I> MHA_ALWAYS_INLINE void element_of_words(V& x, const I& words, int i) {
  if constexpr (Count == 2) {
    if (i == 0)
      first_of_pairs(x, words);
    else
      second_of_pairs(x, words);
  } else {
#if MHA_NEON_ASM
    const std::uint32_t place = static_cast<std::uint32_t>(i) << 24;
    number_of_bytes(x, words, I{0x00ffffffu, 0x04ffffffu, 0x08ffffffu, 0x0cffffffu} + place);
#else
    typedef std::int32_t Signed __attribute__((vector_size(sizeof(I))));
    x = __builtin_convertvector(Signed(words << (24 - 8 * i)) >> 24, V);
#endif
  }
}

/// s (Rows, n), rows `s_stride` apart, = q (Rows, dim) · keysᵀ (dim, n), of the keys of each run, at one stride,
/// as many as fill registers; dim is a multiple of columns_of().
template <class A, class T, int Rows> struct FewScoresBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(RowRuns<T> keys, const A* q, Index dim, A* s, std::ptrdiff_t s_stride,
                                    LineRanges next) {
    constexpr int W = Vector<A, Isa>::width;
    // Of keys: chains enough to hide the latency of a multiply-add. Whole words in two registers would read more rows
    // at once than the first cache has ways for.
    constexpr int registers = (Rows <= (per_word > 1 ? 4 : 2) ? 2 : 1) * (short_registers<Isa> && Rows <= 2 ? 2 : 1);
    Ahead ahead(next);
    const std::ptrdiff_t stride = keys.data->stride;
    const T* waiting[std::size_t{registers}] = {};  // the keys of each register, which may be of several runs
    int known = 0;
    for (Index r = 0; r < keys.count; ++r) {
      const T* now = keys.data[r].data;
      for (Index k = keys.data[r].count; k >= W; k -= W, now += W * stride) {
        waiting[known++] = now;
        if (known < registers) continue;
        some<Isa, registers>(waiting, stride, q, dim, s, s_stride, ahead);
        s += registers * W;
        known = 0;
      }
    }
    if constexpr (registers > 1)
      for (int g = 0; g < known; ++g, s += W) some<Isa, 1>(waiting + g, stride, q, dim, s, s_stride, ahead);
  }

  /// Elements of a key that are loaded together.
  template <class Isa> static constexpr int columns_of() {
    if (per_word > 1) return per_word * columns_at_once<vector_t<float, Isa>>;
    return std::is_same_v<A, T> ? columns_at_once<vector_t<A, Isa>> : Vector<A, Isa>::width;
  }

 private:
  static constexpr int per_word = in_word<A, T>;
  static constexpr bool scales = std::is_same_v<T, scaled_int8>;

  /// Registers of keys, the first of each at `from`.
  template <class Isa, int Registers>
  MHA_ALWAYS_INLINE static void some(const T* const* from, std::ptrdiff_t stride, const A* q, Index dim, A* s,
                                     std::ptrdiff_t s_stride, Ahead& ahead) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width, columns = columns_of<Isa>();
    V sum[std::size_t{Rows}][std::size_t{Registers}];
    MHA_UNROLL_8
    for (int r = 0; r < Rows; ++r) {
      MHA_UNROLL_4
      for (int g = 0; g < Registers; ++g) sum[r][g] = V{};
    }
    [[maybe_unused]] V scale[std::size_t{Registers}];
    if constexpr (scales) {
      MHA_UNROLL_4
      for (int g = 0; g < Registers; ++g) load_scales(scale[g], from[g], stride);
    }
    for (Index d = 0; d < dim; d += columns) {
      Loaded<Isa> key[std::size_t{Registers}];
      MHA_UNROLL_4
      for (int g = 0; g < Registers; ++g) load_keys<Isa>(key[g], from[g] + d, stride);
      MHA_UNROLL_32
      for (int c = 0; c < columns; ++c) {
        ahead.template ask<Registers * W * columns* static_cast<int>(sizeof(T)), columns>(c);
        V x[std::size_t{Registers}];
        MHA_UNROLL_4
        for (int g = 0; g < Registers; ++g) {
          column<Isa>(x[g], key[g], c);
          if constexpr (scales) x[g] = x[g] * scale[g];
        }
        MHA_UNROLL_8
        for (int r = 0; r < Rows; ++r) {
          multiply_add_all<Registers * Rows == 1, 2>(sum[r], q[r * std::ptrdiff_t{dim} + d + c], x);
          MHA_UNROLL_4
          for (int g = 0; g < Registers; ++g) compute_here(sum[r][g]);
        }
      }
    }
    MHA_UNROLL_8
    for (int r = 0; r < Rows; ++r) {
      MHA_UNROLL_4
      for (int g = 0; g < Registers; ++g) store(s + r * s_stride + g * W, sum[r][g]);
    }
  }

  /// Those of as many rows as a register has lanes. Put together in registers: what several stores have written waits
  /// for all of them before it is loaded as one.
  template <class V> MHA_ALWAYS_INLINE static void load_scales(V& scale, const T* rows, std::ptrdiff_t stride) {
    load_scales(scale, rows, stride, std::make_index_sequence<sizeof(V) / sizeof(A)>{});
  }
  template <class V, std::size_t... I>
  MHA_ALWAYS_INLINE static void load_scales(V& scale, const T* rows, std::ptrdiff_t stride, std::index_sequence<I...>) {
    scale = V{row_scale(rows + static_cast<std::ptrdiff_t>(I) * stride)...};
  }

  /// Columns of keys as they were loaded: numbers, or words of several.
  template <class Isa> struct Columns {
    using Register = std::conditional_t<(per_word > 1), typename Vector<float, Isa>::int_type, vector_t<A, Isa>>;
    static constexpr int count = columns_of<Isa>() / per_word;
    using type = Register[std::size_t{count}];
  };
  template <class Isa> using Loaded = typename Columns<Isa>::type;

  template <class Isa> MHA_ALWAYS_INLINE static void load_keys(Loaded<Isa>& key, const T* from, std::ptrdiff_t stride) {
    if constexpr (per_word > 1 || std::is_same_v<A, T>) {
      load_columns(key, reinterpret_cast<const char*>(from), stride * static_cast<std::ptrdiff_t>(sizeof(T)));
    } else {
      constexpr int W = Vector<A, Isa>::width;
      MHA_UNROLL_16
      for (int i = 0; i < W; ++i) load_widened<A, Isa>(key[i], from + i * stride);
      transpose(key);
    }
  }

  template <class Isa> MHA_ALWAYS_INLINE static void column(vector_t<A, Isa>& x, const Loaded<Isa>& key, int c) {
    if constexpr (per_word == 1)
      x = key[c];
    else
      element_of_words<per_word>(x, key[c / per_word], c % per_word);
  }
};

/// One step of the online softmax along the rows of s (rows, n), rows `stride` apart and filled up to whole registers:
/// logits become weights, max moves on, and rescale (W) is what earlier contributions are multiplied by. FewValuesBody
/// sums the weights.
template <class A> struct FewSoftmaxBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* s, std::ptrdiff_t stride, Index rows, Index n, A slope, A* max, A* rescale) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    const Index whole = (n + W - 1) / W * W;
    A base[std::size_t{W}];
    V before, after;
    load(before, max);
    for (Index r = 0; r < rows; ++r) {
      V highest;
      for (Index k = n; k < whole; ++k) s[r * stride + k] = hidden;
      broadcast(highest, max[r]);
      for (Index k = 0; k < whole; k += W) {
        V x;
        load(x, s + r * stride + k);
        raise<A>(highest, x);
      }
      A lanes[std::size_t{W}];
      store(lanes, highest);
      for (int i = 1; i < W; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
      max[r] = lanes[0];
    }
    // While nothing is visible the maximum is −∞; measuring from 0 instead keeps −∞ − (−∞) out.
    load(after, max);
    const V zero{};
    after = after == hidden ? zero : after;
    store(base, after);
    before = (before - after) * slope;
    exp2_in_place<A, Isa>(before);
    store(rescale, before);
    for (Index r = 0; r < rows; ++r) {
      V from;
      broadcast(from, base[r]);
      for (Index k = 0; k < whole; k += W) {
        V x;
        load(x, s + r * stride + k);
        x = (x - from) * slope;
        exp2_in_place<A, Isa>(x);
        store(s + r * stride + k, x);
      }
    }
  }
};

/// out (Rows, dim) = out · rescale + p (Rows, n) · values (n, dim), and sum (Rows) = sum · rescale + Σ p, with p's rows
/// `p_stride` apart; n are the rows of all runs of values, dim is a multiple of W.
template <class A, class T, int Rows> struct FewValuesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(RowRuns<T> values, const A* p, std::ptrdiff_t p_stride, const A* rescale, Index dim,
                                    A* out, A* sum, LineRanges next) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr int most = Isa::registers == 32 ? 16 / Rows : 8 / Rows;
    constexpr int vectors = most > 8 ? 8 : most < 1 ? 1 : most;
    const Part part{values, p, p_stride, rescale, dim, out, sum};
    Ahead ahead(next);
    Index d = 0;
    if (vectors == 1 || vectors * W <= dim) {
      some<Isa, vectors, true>(part, ahead, 0);
      for (d = vectors * W; d + vectors * W <= dim; d += vectors * W) some<Isa, vectors, false>(part, ahead, d);
    }
    // One register where nothing is summed yet, then two at a time, and one if it is left: each is compiled once.
    if constexpr (vectors > 1)
      while (d < dim) {
        if constexpr (vectors > 2)
          for (; d > 0 && d + 2 * W <= dim; d += 2 * W) some<Isa, 2, false>(part, ahead, d);
        if (d == dim) break;
        some<Isa, 1, true>(part, ahead, d);
        d += W;
      }
  }

 private:
  struct Part {
    RowRuns<T> values;
    const A* p;
    std::ptrdiff_t p_stride;
    const A* rescale;
    Index dim;
    A *out, *sum;
  };
  static constexpr bool in_pairs = std::is_same_v<T, bfloat16> && std::is_same_v<A, float>;

  /// Columns [d, d + Vectors · W); if it Sums, the sums too, which are kept where the columns are the first.
  template <class Isa, int Vectors, bool Sums>
  MHA_ALWAYS_INLINE static void some(const Part& part, Ahead& ahead, Index d) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    A* const out = part.out + d;
    V sum[std::size_t{Rows}][std::size_t{Vectors}], total[std::size_t{Rows}];
    MHA_UNROLL_8
    for (int r = 0; r < Rows; ++r) {
      V f;
      broadcast(f, part.rescale[r]);
      load_row<Isa>(sum[r], out + r * std::ptrdiff_t{part.dim});
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) {
        sum[r][j] = sum[r][j] * f;
        round_here(sum[r][j]);
      }
      if constexpr (Sums) {
        broadcast(total[r], part.sum[r]);
        total[r] = total[r] * f;
        round_here(total[r]);
      }
    }
    const A* p = part.p;
    const StoredRows<T>* const end = part.values.data + part.values.count;
    for (const StoredRows<T>* run = part.values.data; run != end; ++run) {
      const T* value = run->data + d;
      const std::ptrdiff_t stride = run->stride;
      for (Index n = run->count; n > 0; --n, value += stride, ++p) {
        V v[std::size_t{Vectors}];
        load_values<Isa>(v, value);
        scale_values(v, value - d);
        MHA_UNROLL_8
        for (int r = 0; r < Rows; ++r) {
          ahead.template ask<Vectors * W* static_cast<int>(sizeof(T)), Rows>(r);
          if constexpr (Sums) {
            V weight;
            broadcast(weight, p[r * part.p_stride]);
            total[r] = total[r] + weight;
          }
          multiply_add_all<Vectors == 1>(sum[r], p[r * part.p_stride], v);
          if constexpr (sizeof(V) == 32) {  // else g++ copies them
            MHA_UNROLL_8
            for (int j = 0; j < Vectors; ++j) compute_here(sum[r][j]);
          }
        }
      }
    }
    MHA_UNROLL_8
    for (int r = 0; r < Rows; ++r) {
      store_row<Isa>(sum[r], out + r * std::ptrdiff_t{part.dim});
      if constexpr (Sums) {
        A lanes[std::size_t{W}];
        store(lanes, total[r]);
        if (d == 0) part.sum[r] = lanes[0];
      }
    }
  }

  template <class V, std::size_t Vectors> MHA_ALWAYS_INLINE static void scale_values(V (&v)[Vectors], const T* row) {
    MHA_UNROLL_8
    for (std::size_t j = 0; j < Vectors; ++j) scale_by_row(v[j], row);
  }

  // Registers of 16-bit values come in pairs, of even and of odd columns; sums in memory are in order.

  template <class Isa, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void load_values(vector_t<A, Isa> (&v)[Vectors], const T* from) {
    constexpr int W = Vector<A, Isa>::width;
    if constexpr (in_pairs && Vectors > 1) {
      MHA_UNROLL_8
      for (std::size_t j = 0; j < Vectors; j += 2) {
        typename Vector<float, Isa>::int_type pairs;
        __builtin_memcpy(&pairs, from + static_cast<int>(j) * W, sizeof(pairs));
        first_of_pairs(v[j], pairs);
        second_of_pairs(v[j + 1], pairs);
      }
    } else {
      MHA_UNROLL_8
      for (std::size_t j = 0; j < Vectors; ++j) load_widened<A, Isa>(v[j], from + static_cast<int>(j) * W);
    }
  }

  template <class Isa, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void load_row(vector_t<A, Isa> (&v)[Vectors], const A* from) {
    constexpr int W = Vector<A, Isa>::width;
    MHA_UNROLL_8
    for (std::size_t j = 0; j < Vectors; ++j) load(v[j], from + static_cast<int>(j) * W);
    if constexpr (in_pairs && Vectors > 1) {
      MHA_UNROLL_4
      for (std::size_t j = 0; j < Vectors; j += 2) unzip(v[j], v[j + 1], std::make_index_sequence<std::size_t{W}>{});
    }
  }

  template <class Isa, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void store_row(vector_t<A, Isa> (&v)[Vectors], A* to) {
    constexpr int W = Vector<A, Isa>::width;
    if constexpr (in_pairs && Vectors > 1) {
      MHA_UNROLL_4
      for (std::size_t j = 0; j < Vectors; j += 2) zip(v[j], v[j + 1], std::make_index_sequence<std::size_t{W}>{});
    }
    MHA_UNROLL_8
    for (std::size_t j = 0; j < Vectors; ++j) store(to + static_cast<int>(j) * W, v[j]);
  }

  template <class V, std::size_t... I> MHA_ALWAYS_INLINE static void unzip(V& a, V& b, std::index_sequence<I...>) {
    V even;
    shuffle<static_cast<int>(2 * I)...>(even, a, b);
    shuffle<static_cast<int>(2 * I + 1)...>(b, a, b);
    a = even;
  }
  template <class V, std::size_t... I> MHA_ALWAYS_INLINE static void zip(V& a, V& b, std::index_sequence<I...>) {
    constexpr int W = sizeof...(I);
    V low;
    shuffle<static_cast<int>(I / 2 + (I % 2 == 0 ? 0 : W))...>(low, a, b);
    shuffle<static_cast<int>(I / 2 + (I % 2 == 0 ? 0 : W) + W / 2)...>(b, a, b);
    a = low;
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
