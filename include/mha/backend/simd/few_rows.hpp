// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "isa.hpp"
#include "product_kernel.hpp"
#include "transpose.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// The inner loops of a tile of few rows over many keys, the shape of decoding: bound by reading keys and values, so
/// every element is loaded once for all rows, straight from storage, and what comes next is on its way meanwhile.
///
/// Each chain of additions runs over the same elements in the same order as in tile_kernels.hpp: the bits are the same.
namespace mha::inline v0::detail::simd {

/// s (n, W) = keys (n, dim) · q (dim, W) for the first Rows of a register's W columns, with keys in lanes; n and dim
/// are multiples of W.
template <class A, class T, int Rows> struct FewScoresBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* keys, std::ptrdiff_t stride, Index n, const A* q, Index dim, A* s,
                                    NextRows<T> next) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    for (Index k = 0; k < n; k += W, keys += W * stride) {
      V sum[std::size_t{W}];
#pragma GCC unroll 16
      for (int r = 0; r < W; ++r) sum[r] = V{};
      for (Index d = 0; d < dim; d += W) {
        if (k + W <= next.count && d < next.dim) {
          const T* const ahead = next.data + k * next.stride;
#pragma GCC unroll 16
          for (int i = 0; i < W; ++i) prefetch<W>(ahead + i * next.stride, d);
        }
        V key[std::size_t{W}];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) load_widened<A, Isa>(key[i], keys + i * stride + d);
        transpose(key);
        const A* const at = q + std::ptrdiff_t{d} * W;
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
#pragma GCC unroll 8
          for (int r = 0; r < Rows; ++r) {
            V query;
            broadcast(query, at[i * W + r]);
            multiply_add<Rows == 1>(sum[r], key[i], query);
          }
      }
      transpose(sum);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) store(s + (std::ptrdiff_t{k} + i) * W, sum[i]);
    }
  }
};

/// out (Rows, dim) = out · fade + p (n, W)ᵀ · values (n, dim) for the first Rows of p's W columns; dim is a multiple of
/// W.
template <class A, class T, int Rows> struct FewValuesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const T* values, std::ptrdiff_t stride, Index n, const A* p, const A* fade,
                                    Index dim, A* out, NextRows<T> next) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr int most = Isa::registers == 32 ? 16 / Rows : 8 / Rows;
    constexpr int vectors = most > 8 ? 8 : most < 1 ? 1 : most;
    Index d = 0;
    for (; d + vectors * W <= dim; d += vectors * W) some<Isa, vectors>(values, stride, n, p, fade, dim, out, next, d);
    if constexpr (vectors > 2)
      for (; d + 2 * W <= dim; d += 2 * W) some<Isa, 2>(values, stride, n, p, fade, dim, out, next, d);
    for (; d < dim; d += W) some<Isa, 1>(values, stride, n, p, fade, dim, out, next, d);
  }

 private:
  template <class Isa, int Vectors>
  MHA_ALWAYS_INLINE static void some(const T* values, std::ptrdiff_t stride, Index n, const A* p, const A* fade,
                                     Index dim, A* out, const NextRows<T>& next, Index d) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    V sum[std::size_t{Rows}][std::size_t{Vectors}];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      V f;
      broadcast(f, fade[r]);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) {
        V o;
        load(o, out + r * std::ptrdiff_t{dim} + d + j * W);
        sum[r][j] = o * f;
        round_here(sum[r][j]);
      }
    }
    const T* value = values + d;
    for (Index k = 0; k < n; ++k, value += stride) {
      if (k < next.count && d < next.dim) prefetch<Vectors * W>(next.data + k * next.stride, d);
      V v[std::size_t{Vectors}];
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) load_widened<A, Isa>(v[j], value + j * W);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        V weight;
        broadcast(weight, p[std::ptrdiff_t{k} * W + r]);
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j) multiply_add<Rows * Vectors == 1>(sum[r][j], v[j], weight);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) store(out + r * std::ptrdiff_t{dim} + d + j * W, sum[r][j]);
  }
};

/// The kernels of a tile of at most `rows` rows, one register wide, over keys and values as they are stored.
template <class A, class T> struct FewRowsKernels {
  Index rows = 0;
  void (*scores)(const T* keys, std::ptrdiff_t stride, Index n, const A* q, Index dim, A* s,
                 NextRows<T> next) = nullptr;
  void (*values)(const T* values, std::ptrdiff_t stride, Index n, const A* p, const A* fade, Index dim, A* out,
                 NextRows<T> next) = nullptr;
};

/// Rows = 0 where another tile serves better: too many rows, or sizes that do not fill registers.
template <class A, class T>
FewRowsKernels<A, T> few_rows_kernels(IsaLevel level, Index rows, Index head_dim, Index value_dim) {
  return with_isa(level, [&](auto isa) -> FewRowsKernels<A, T> {
    using Isa = decltype(isa);
    constexpr Index width = Vector<A, Isa>::width;
    const auto kernels = [](auto constant) {
      constexpr int R = decltype(constant)::value;
      return FewRowsKernels<A, T>{R, &Isa::template run<FewScoresBody<A, T, R>>,
                                  &Isa::template run<FewValuesBody<A, T, R>>};
    };
    if (width < 4 || head_dim % width != 0 || value_dim % width != 0) return {};
    if (rows <= 1) return kernels(std::integral_constant<int, 1>{});
    if constexpr (width >= 4) {
      if (rows <= 2) return kernels(std::integral_constant<int, 2>{});
      if (rows <= 4) return kernels(std::integral_constant<int, 4>{});
    }
    if constexpr (width >= 8)
      if (rows <= 8) return kernels(std::integral_constant<int, 8>{});
    return {};
  });
}

}  // namespace mha::inline v0::detail::simd
