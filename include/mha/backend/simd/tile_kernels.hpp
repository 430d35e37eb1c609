// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "../../config.hpp"
#include "exp2.hpp"
#include "isa.hpp"
#include "product_kernel.hpp"
#include "vector.hpp"

/// The inner loops of attention over one tile of queries × one block of keys.
///
/// Queries lie in lanes: a tile is stored as (rows, lanes), so that the maximum, the sum and the rescale of a softmax
/// row never cross lanes, and keys and values are read in place, whatever their stride. Each lane's arithmetic is one
/// chain in the order of d and of the keys, independent of the other lanes: a row's bits do not depend on its tile.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// One step of the online softmax, down the columns of s (n, lanes): logits become weights, max and sum move on, and
/// rescale is what earlier contributions are multiplied by. `slope` turns differences of s into powers of two.
template <class T, int Vectors> struct SoftmaxBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(T* s, Index n, T slope, T* max, T* sum, T* rescale) {
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
      store(rescale + j * W, f);
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

/// out (dim, lanes) = out · rescale + valuesᵀ (dim, n) · p (n, lanes). `next` is prefetched meanwhile.
template <class T, int Rows, int Vectors> struct ValuesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* rescale,
                                    Index dim, T* out, NextRows<T> next) {
    constexpr int lanes = Vectors * Vector<T, Isa>::width;
    Index d = 0;
    for (; d + Rows <= dim; d += Rows)
      rows<Isa, Rows>(values + d, stride, n, p, rescale, out + std::ptrdiff_t{d} * lanes, next, d);
    if constexpr (Rows > 4)
      for (; d + 4 <= dim; d += 4)
        rows<Isa, 4>(values + d, stride, n, p, rescale, out + std::ptrdiff_t{d} * lanes, next, d);
    for (; d < dim; ++d) rows<Isa, 1>(values + d, stride, n, p, rescale, out + std::ptrdiff_t{d} * lanes, next, d);
  }

 private:
  template <class Isa, int RowCount>
  MHA_ALWAYS_INLINE static void rows(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* rescale,
                                     T* out, const NextRows<T>& next, Index d) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    V sum[std::size_t{RowCount}][std::size_t{Vectors}];
    {
      V f[std::size_t{Vectors}];
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) load(f[j], rescale + j * W);
      MHA_UNROLL_16
      for (int i = 0; i < RowCount; ++i) {
        MHA_UNROLL_8
        for (int j = 0; j < Vectors; ++j) {
          V o;
          load(o, out + (i * Vectors + j) * W);
          sum[i][j] = o * f[j];
          round_here(sum[i][j]);
        }
      }
    }
    constexpr std::ptrdiff_t lanes = Vectors * W;
    Index k = 0;
    if constexpr (RowCount == Rows) {
      // A line of `next` is prefetched by all the passes that read such a line of values, by each for its share of the
      // rows.
      constexpr Index line = 64 / static_cast<Index>(sizeof(T)), group = 16;
      constexpr Index share = std::max(group * RowCount / line, Index{1});
      const Index turn = d / RowCount * share % group, wanted = d < next.dim ? next.count : 0;
      while (k + group <= n) {
        if (k + group <= wanted) {
          MHA_UNROLL_8
          for (Index i = k + turn; i < k + turn + share; ++i) prefetch<1>(next.data + i * next.stride, d / line * line);
        }
        for (const Index end = k + group; k != end; k += 4)
          add_four_products<Isa>(sum, values + k * stride, stride, 1, p + k * lanes, lanes);
      }
    }
    for (; k < n; ++k) add_products<Isa>(sum, values + k * stride, 1, p + k * lanes);
    MHA_UNROLL_16
    for (int i = 0; i < RowCount; ++i) {
      MHA_UNROLL_8
      for (int j = 0; j < Vectors; ++j) store(out + (i * Vectors + j) * W, sum[i][j]);
    }
  }
};

/// The same for data that is not all finite, of any width: a pair whose `visible` (n, lanes) is 0 adds nothing even if
/// its value is NaN or infinite; the other lanes get the bits of ValuesBody.
template <class T> struct GuardedValuesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible,
                                    const T* rescale, Index dim, T* out, Index lanes) {
    for (Index lane = 0; lane < lanes; lane += Vector<T, Isa>::width) {
      Index d = 0;
      for (; d + 4 <= dim; d += 4)
        rows<Isa, 4>(values + d, stride, n, p + lane, visible + lane, rescale + lane, out + d * lanes + lane, lanes);
      for (; d < dim; ++d)
        rows<Isa, 1>(values + d, stride, n, p + lane, visible + lane, rescale + lane, out + d * lanes + lane, lanes);
    }
  }

 private:
  template <class Isa, int RowCount>
  MHA_ALWAYS_INLINE static void rows(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible,
                                     const T* rescale, T* out, std::ptrdiff_t lanes) {
    using V = vector_t<T, Isa>;
    const V zero{};
    V f, sum[std::size_t{RowCount}];
    load(f, rescale);
    MHA_UNROLL_4
    for (int i = 0; i < RowCount; ++i) {
      load(sum[i], out + i * lanes);
      sum[i] = sum[i] * f;
      round_here(sum[i]);
    }
    for (Index k = 0; k < n; ++k, values += stride, p += lanes, visible += lanes) {
      V weight, seen;
      load(weight, p);
      load(seen, visible);
      MHA_UNROLL_4
      for (int i = 0; i < RowCount; ++i) {
        V value;
        broadcast(value, values[i]);
        const V guarded = seen != zero ? value : zero;
        multiply_add<RowCount == 1>(sum[i], guarded, weight);
      }
    }
    MHA_UNROLL_4
    for (int i = 0; i < RowCount; ++i) store(out + i * lanes, sum[i]);
  }
};

/// The state of the softmax rows of a tile over some of their keys, in memory.
///
/// Shapes    max (lanes)  sum (lanes)  out (dim, lanes): Σ exp(s − max) v, not yet divided by the sum
template <class T> struct TileState { T *max, *sum, *out; };

/// sum ← sum · rescale + more · weight, every operation rounded.
template <class V> MHA_ALWAYS_INLINE void add_rescaled(V& sum, const V& rescale, V& more, const V& weight) {
  sum = sum * rescale;
  more = more * weight;
  round_here(sum);
  round_here(more);
  sum = sum + more;
}

/// Of one register of lanes: total's max and sum become those of both parts, and what their outputs are multiplied by.
template <class T> struct MergeFactors {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const TileState<T>& total, const TileState<T>& part, T slope, T* rescale,
                                    T* weight) {
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
    add_rescaled(sum, first, more, second);
    store(total.sum, sum);
    store(rescale, first);
    store(weight, second);
  }
};

/// What two parts over disjoint keys make together; `total` becomes it. A part that saw nothing changes no bit.
///
/// Formula   m′ = max(m₁, m₂),  l′ = l₁·exp(m₁ − m′) + l₂·exp(m₂ − m′),  O likewise
template <class T> struct MergeBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(TileState<T> total, TileState<T> part, T slope, Index dim, Index lanes) {
    using V = vector_t<T, Isa>;
    constexpr int W = Vector<T, Isa>::width;
    for (Index lane = 0; lane < lanes; lane += W) {
      T rescales[std::size_t{W}], weights[std::size_t{W}];
      MergeFactors<T>::template run<Isa>({total.max + lane, total.sum + lane, nullptr},
                                         {part.max + lane, part.sum + lane, nullptr}, slope, +rescales, +weights);
      V rescale, weight;
      load(rescale, +rescales);
      load(weight, +weights);
      for (Index d = 0; d < dim; ++d) {
        const std::ptrdiff_t at = std::ptrdiff_t{d} * lanes + lane;
        V sum, more;
        load(sum, total.out + at);
        load(more, part.out + at);
        add_rescaled(sum, rescale, more, weight);
        store(total.out + at, sum);
      }
    }
  }
};

/// total ← the two parts together, as MergeBody does it, with outputs in rows (rows, dim); dim is a multiple of W.
template <class A> struct FewMergeBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(TileState<A> total, TileState<A> part, A slope, Index dim, Index rows) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    A rescale[std::size_t{W}], weight[std::size_t{W}];
    MergeFactors<A>::template run<Isa>(total, part, slope, +rescale, +weight);
    for (Index r = 0; r < rows; ++r) {
      V f, w;
      broadcast(f, rescale[r]);
      broadcast(w, weight[r]);
      A* const out = total.out + r * std::ptrdiff_t{dim};
      const A* const more = part.out + r * std::ptrdiff_t{dim};
      for (Index d = 0; d < dim; d += W) {
        V sum, x;
        load(sum, out + d);
        load(x, more + d);
        add_rescaled(sum, f, x, w);
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
  void (*softmax)(T* s, Index n, T slope, T* max, T* sum, T* rescale);
  void (*values)(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* rescale, Index dim, T* out,
                 NextRows<T> next);
  void (*guarded_values)(const T* values, std::ptrdiff_t stride, Index n, const T* p, const T* visible,
                         const T* rescale, Index dim, T* out, Index lanes);
  void (*merge)(TileState<T> total, TileState<T> part, T slope, Index dim, Index lanes);
  void (*non_finite)(const T* x, std::ptrdiff_t n, T* sum);
  Index width;  ///< lanes of a register
};

template <class T, class Isa, int Rows, int Vectors> constexpr TileKernels<T> make_tile_kernels() {
  return {Vectors * Vector<T, Isa>::width,
          Rows,
          &Isa::template run<ProductBody<T, Rows, Vectors>>,
          &Isa::template run<SoftmaxBody<T, Vectors>>,
          &Isa::template run<ValuesBody<T, Rows, Vectors>>,
          &Isa::template run<GuardedValuesBody<T>>,
          &Isa::template run<MergeBody<T>>,
          &Isa::template run<NonFiniteBody<T>>,
          Vector<T, Isa>::width};
}

/// Registers that the queries of the widest tile are in.
template <class Isa> inline constexpr int widest_registers = Isa::minimal ? 2 : 3;

/// Queries of the widest tile.
template <class T> Index widest_tile(IsaLevel level) {
  return with_isa(level, [](auto isa) {
    using Isa = decltype(isa);
    return Index{widest_registers<Isa> * Vector<T, Isa>::width};
  });
}

/// The kernels for a tile of this many queries: the narrowest that holds them, at most the widest.
template <class T> TileKernels<T> tile_kernels(IsaLevel level, Index queries) {
  return with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    constexpr Index width = Vector<T, Isa>::width;
    // Accumulators, a row of queries and a broadcast value fill the registers.
    constexpr int rows = Isa::registers == 32 ? 8 : 4;
    if constexpr (!Isa::minimal) {
      if (queries <= width) return make_tile_kernels<T, Isa, 8, 1>();
      if (queries > 2 * width) return make_tile_kernels<T, Isa, rows, widest_registers<Isa>>();
    }
    return make_tile_kernels<T, Isa, rows, 2>();
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
