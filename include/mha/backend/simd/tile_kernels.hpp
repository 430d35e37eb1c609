// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>

#include "../../config.hpp"
#include "isa.hpp"
#include "product_kernel.hpp"
#include "vector.hpp"

/// The inner loops of attention over one tile of queries × one block of keys.
///
/// Queries lie in lanes: a tile is stored as (rows, lanes), so that the maximum, the sum and the rescale of a softmax
/// row never cross lanes, and keys and values are read in place, whatever their stride. Each lane's arithmetic is one
/// chain in the order of d and of the keys, independent of the other lanes: a row's bits do not depend on its tile.
namespace mha::inline v0::detail::simd {

/// One step of the online softmax, down the columns of s (n, lanes): logits become weights, max and sum move on, and
/// fade is what earlier contributions are multiplied by. `slope` turns differences of s into powers of two.
template <class T, int Vectors> struct SoftmaxBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(T* s, Index n, T slope, T* max, T* sum, T* fade) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    constexpr T hidden = -std::numeric_limits<T>::infinity();
    V from[std::size_t{Vectors}], total[std::size_t{Vectors}];
    MHA_UNROLL_8
    for (int j = 0; j < Vectors; ++j) load(from[j], max + j * W);
    T* at = s;
    for (Index k = 0; k < n; ++k, at += Vectors * W) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) {
        V x;
        load(x, at + j * W);
        raise<T>(from[j], x);
      }
    }
    MHA_UNROLL_8
    for (int j = 0; j < Vectors; ++j) {
      V f;
      load(f, max + j * W);
      store(max + j * W, from[j]);
      // While nothing is visible the maximum is −∞; measuring from 0 instead keeps −∞ − (−∞) out.
      const V zero{};
      from[j] = from[j] == hidden ? zero : from[j];
      f = (f - from[j]) * slope;
      exp2_in_place<T, Isa>(f);
      store(fade + j * W, f);
      load(total[j], sum + j * W);
      total[j] = total[j] * f;
      round_here(total[j]);
    }
    at = s;
    for (Index k = 0; k < n; ++k, at += Vectors * W) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) {
        V x;
        load(x, at + j * W);
        x = (x - from[j]) * slope;
        exp2_in_place<T, Isa>(x);
        total[j] = total[j] + x;
        store(at + j * W, x);
      }
    }
    MHA_UNROLL_8
    for (int j = 0; j < Vectors; ++j) store(sum + j * W, total[j]);
  }
};

/// out (dim, lanes) = out · fade + valuesᵀ (dim, n) · p (n, lanes). Guarded: a pair whose `visible` (n, lanes) is 0
/// adds nothing even if its value is NaN or infinite; the other lanes keep their bits. `next` is asked for meanwhile.
template <class T, int Rows, int Vectors, bool Guarded> struct ValuesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible,
                                    const T* fade, Index dim, T* out, NextRows<T> next) {
    constexpr int lanes = Vectors * Vector<T, Isa>::width;
    Index d = 0;
    for (; d + Rows <= dim; d += Rows)
      rows<Isa, Rows>(values + d, stride, n, p, visible, fade, out + std::ptrdiff_t{d} * lanes, next, d);
    if constexpr (Rows > 4)
      for (; d + 4 <= dim; d += 4)
        rows<Isa, 4>(values + d, stride, n, p, visible, fade, out + std::ptrdiff_t{d} * lanes, next, d);
    for (; d < dim; ++d)
      rows<Isa, 1>(values + d, stride, n, p, visible, fade, out + std::ptrdiff_t{d} * lanes, next, d);
  }

 private:
  template <class Isa, int R>
  MHA_ALWAYS_INLINE static void rows(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible,
                                     const T* fade, T* out, const NextRows<T>& next, Index d) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    constexpr std::ptrdiff_t line = 64 / sizeof(T);
    V sum[std::size_t{R}][std::size_t{Vectors}];
    {
      V f[std::size_t{Vectors}];
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) load(f[j], fade + j * W);
      MHA_UNROLL_16
      for (int i = 0; i < R; ++i) {
        MHA_UNROLL_8
        for (int j = 0; j < Vectors; ++j) {
          V o;
          load(o, out + (i * Vectors + j) * W);
          sum[i][j] = o * f[j];
          round_here(sum[i][j]);
        }
      }
    }
    const Index wanted = d < next.dim ? next.count : 0;
    for (Index k = 0; k < n; ++k) {
      if (k < wanted) prefetch<R>(next.data + k * next.stride, d);
      V weight[std::size_t{Vectors}];
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) load(weight[j], p + (std::ptrdiff_t{k} * Vectors + j) * W);
      __builtin_prefetch(values + k * stride + line);  // what the next rows of out will read
      MHA_UNROLL_16
      for (int i = 0; i < R; ++i) {
        V value;
        broadcast(value, values[k * stride + i]);
        MHA_UNROLL_8
        for (int j = 0; j < Vectors; ++j) {
          if constexpr (Guarded) {
            const V zero{};
            V seen;
            load(seen, visible + (std::ptrdiff_t{k} * Vectors + j) * W);
            const V guarded = seen != zero ? value : zero;
            multiply_add<R * Vectors == 1>(sum[i][j], guarded, weight[j]);
          } else {
            multiply_add<R * Vectors == 1>(sum[i][j], value, weight[j]);
          }
        }
      }
    }
    MHA_UNROLL_16
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) store(out + (i * Vectors + j) * W, sum[i][j]);
    }
  }
};

/// The state of the softmax rows of a tile over some of their keys, in memory.
///
/// Shapes    max (lanes)  sum (lanes)  out (dim, lanes): Σ exp(s − max) v, not yet divided by the sum
template <class T> struct TileState { T *max, *sum, *out; };

/// sum ← sum · fade + more · weight, every operation rounded.
template <class V> MHA_ALWAYS_INLINE void add_faded(V& sum, const V& fade, V& more, const V& weight) {
  sum = sum * fade;
  more = more * weight;
  round_here(sum);
  round_here(more);
  sum = sum + more;
}

/// Of one register of lanes: total's max and sum become those of both parts, and what their outputs are multiplied by.
template <class T> struct MergeFactors {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TileState<T>& total, const TileState<T>& part, T slope, T* fade, T* weight) {
    using V = vector_t<T, Isa>;
    constexpr T hidden = -std::numeric_limits<T>::infinity();
    V first, second, sum, more;
    load(first, total.max);
    load(second, part.max);
    const V highest = second > first ? second : first;
    store(total.max, highest);
    const V zero{};
    const V base = highest == hidden ? zero : highest;
    first = (first - base) * slope;
    second = (second - base) * slope;
    exp2_in_place<T, Isa>(first);
    exp2_in_place<T, Isa>(second);
    load(sum, total.sum);
    load(more, part.sum);
    add_faded(sum, first, more, second);
    store(total.sum, sum);
    store(fade, first);
    store(weight, second);
  }
};

/// What two parts over disjoint keys make together; `total` becomes it. A part that saw nothing changes no bit.
///
/// Formula   m′ = max(m₁, m₂),  l′ = l₁·exp(m₁ − m′) + l₂·exp(m₂ − m′),  O likewise
template <class T, int Vectors> struct MergeBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(TileState<T> total, TileState<T> part, T slope, Index dim) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    for (int j = 0; j < Vectors; ++j) {
      T fades[std::size_t{W}], weights[std::size_t{W}];
      MergeFactors<T>::template run<Isa>({total.max + j * W, total.sum + j * W, nullptr},
                                         {part.max + j * W, part.sum + j * W, nullptr}, slope, +fades, +weights);
      V fade, weight;
      load(fade, +fades);
      load(weight, +weights);
      for (Index d = 0; d < dim; ++d) {
        const std::ptrdiff_t at = (std::ptrdiff_t{d} * Vectors + j) * W;
        V sum, more;
        load(sum, total.out + at);
        load(more, part.out + at);
        add_faded(sum, fade, more, weight);
        store(total.out + at, sum);
      }
    }
  }
};

/// total ← the two parts together, as MergeBody does it, with outputs in rows (Rows, dim); dim is a multiple of W.
template <class A, int Rows> struct FewMergeBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(TileState<A> total, TileState<A> part, A slope, Index dim) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    A fade[std::size_t{W}], weight[std::size_t{W}];
    MergeFactors<A>::template run<Isa>(total, part, slope, +fade, +weight);
    for (int r = 0; r < Rows; ++r) {
      V f, w;
      broadcast(f, fade[r]);
      broadcast(w, weight[r]);
      A* const out = total.out + r * std::ptrdiff_t{dim};
      const A* const more = part.out + r * std::ptrdiff_t{dim};
      for (Index d = 0; d < dim; d += W) {
        V sum, x;
        load(sum, out + d);
        load(x, more + d);
        add_faded(sum, f, x, w);
        store(out + d, sum);
      }
    }
  }
};

/// sum (W) = the sums of 0 · x (n) lane by lane, 0 where all are finite; n is a multiple of W.
template <class T> struct NonFiniteBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const T* x, std::ptrdiff_t n, T* sum) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    V even{}, odd{}, a;
    std::ptrdiff_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
      load(a, x + i);
      even = even + a * T(0);
      load(a, x + i + W);
      odd = odd + a * T(0);
    }
    if (i < n) {
      load(a, x + i);
      even = even + a * T(0);
    }
    even = even + odd;
    store(sum, even);
  }
};

/// The kernels of one scalar at one instruction-set level and one tile width.
template <class T> struct TileKernels {
  Index lanes;              ///< queries of a tile
  Index rows;               ///< keys computed together: the grain at which hidden keys are skipped
  ProductKernel<T> scores;  ///< s (n, lanes) = keys (n, dim) · q (dim, lanes)
  void (*softmax)(T* s, Index n, T slope, T* max, T* sum, T* fade);
  void (*values)(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible, const T* fade,
                 Index dim, T* out, NextRows<T> next);
  void (*guarded_values)(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible, const T* fade,
                         Index dim, T* out, NextRows<T> next);
  void (*merge)(TileState<T> total, TileState<T> part, T slope, Index dim);
  void (*non_finite)(const T* x, std::ptrdiff_t n, T* sum);
  Index width;  ///< lanes of a register
};

template <class T, class Isa, int Rows, int Vectors> constexpr TileKernels<T> make_tile_kernels() {
  return {Vectors * Vector<T, Isa>::width,
          Rows,
          &Isa::template run<ProductBody<T, Rows, Vectors>>,
          &Isa::template run<SoftmaxBody<T, Vectors>>,
          &Isa::template run<ValuesBody<T, Rows, Vectors, false>>,
          &Isa::template run<ValuesBody<T, Rows, Vectors, true>>,
          &Isa::template run<MergeBody<T, Vectors>>,
          &Isa::template run<NonFiniteBody<T>>,
          Vector<T, Isa>::width};
}

/// Queries of the widest tile.
template <class T> Index widest_tile(IsaLevel level) {
  return with_isa(level, [](auto isa) {
    using Isa = decltype(isa);
    return Index{(Isa::level == IsaLevel::baseline ? 2 : 3) * Vector<T, Isa>::width};
  });
}

/// The kernels for a tile of this many queries: the narrowest that holds them, at most the widest.
template <class T> TileKernels<T> tile_kernels(IsaLevel level, Index queries) {
  return with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    constexpr Index width = Vector<T, Isa>::width;
    // Accumulators, a row of queries and a broadcast value fill the registers.
    constexpr int rows = Isa::registers == 32 ? 8 : 4;
    constexpr int widest = Isa::level == IsaLevel::baseline ? 2 : 3;
    if (queries <= width) return make_tile_kernels<T, Isa, 8, 1>();
    if (queries <= 2 * width) return make_tile_kernels<T, Isa, rows, 2>();
    return make_tile_kernels<T, Isa, rows, widest>();
  });
}

}  // namespace mha::inline v0::detail::simd
