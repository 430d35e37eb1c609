// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "../../config.hpp"
#include "isa.hpp"
#include "tile_kernels.hpp"
#include "vector.hpp"

/// The inner loops of attention's backward pass over one tile of queries × one block of keys, as (keys, lanes) with
/// queries in lanes. Each sum is one chain, over keys ascending for dQ and over queries ascending for dK and dV, that
/// goes on where the block before stopped: its bits do not depend on how the work is cut into tiles.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// What every query of a tile has: its level, log2 of its denominator (+∞ in a lane without a query) and what is
/// subtracted from dP.
///
/// Shapes    (lanes)
template <class A> struct BackwardRows { const A *level, *log2_sum, *delta; };

/// s ← P = 2^((s − level) · slope − log2 sum), dp ← dS = P · (dp − delta) · ∂t/∂s; both 0 where s is −∞. `derivative`
/// may be null.
///
/// Shapes    s, dp, derivative (n, lanes)
template <class A> struct WeightGradientBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* s, A* dp, const A* derivative, Index n, Index lanes, BackwardRows<A> rows,
                                    A slope) {
    using V = vector_t<A, Isa>;
    constexpr Index W = Vector<A, Isa>::width;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    const V zero{};
    for (Index lane = 0; lane < lanes; lane += W) {
      V level, log2_sum, delta;
      load(level, rows.level + lane);
      load(log2_sum, rows.log2_sum + lane);
      load(delta, rows.delta + lane);
      for (Index k = 0; k < n; ++k) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * lanes + lane;
        V x, p, d;
        load(x, s + at);
        load(d, dp + at);
        p = (x - level) * slope;
        round_here(p);
        p = p - log2_sum;
        exp2_in_place<A, Isa>(p);
        p = x == hidden ? zero : p;
        d = p * (d - delta);
        if (derivative != nullptr) {
          V by;
          load(by, derivative + at);
          d = d * by;
        }
        d = x == hidden ? zero : d;
        store(s + at, p);
        store(dp + at, d);
      }
    }
  }
};

/// The operands of out (n keys, dim) += s (n keys, queries) · x (queries, dim), where the columns of s lie in tiles of
/// `lanes`. dim is a whole number of registers.
template <class A> struct OuterArgs {
  const A* s;
  Index lanes;
  std::ptrdiff_t tile_stride;  ///< of s, from a tile to the next
  Index n, queries;
  const A* x;
  std::ptrdiff_t x_stride;
  Index dim;
  A* out;
  std::ptrdiff_t out_stride;
};

/// Rows keys × Columns registers along dim at a time: elements of s are broadcast.
template <class A, int Rows, int Columns> struct OuterBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(OuterArgs<A> a) {
    Index k = 0;
    for (; k + Rows <= a.n; k += Rows) all_columns<Isa, Rows>(a, k);
    for (; k + 2 <= a.n; k += 2) all_columns<Isa, 2>(a, k);
    if (k < a.n) all_columns<Isa, 1>(a, k);
  }

 private:
  template <class Isa, int R> MHA_ALWAYS_INLINE static void all_columns(const OuterArgs<A>& a, Index k) {
    constexpr Index W = Vector<A, Isa>::width;
    Index d = 0;
    for (; d + Columns * W <= a.dim; d += Columns * W) some<Isa, R, Columns>(a, k, d);
    for (; d < a.dim; d += W) some<Isa, R, 1>(a, k, d);
  }

  template <class Isa, int R, int C> MHA_ALWAYS_INLINE static void some(const OuterArgs<A>& a, Index k, Index d) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    A* const out = a.out + k * a.out_stride + d;
    V sum[std::size_t{R}][std::size_t{C}];
    MHA_UNROLL_8
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < C; ++j) load(sum[i][j], out + i * a.out_stride + j * W);
    }
    const A* tile = a.s + std::ptrdiff_t{k} * a.lanes;
    const A* x = a.x + d;
    const std::ptrdiff_t lanes = a.lanes, x_stride = a.x_stride;
    for (Index first = 0; first < a.queries; first += a.lanes, tile += a.tile_stride) {
      const Index n = std::min(a.lanes, a.queries - first);
      for (Index q = 0; q < n; ++q, x += x_stride) {
        V row[std::size_t{C}];
        MHA_UNROLL_4
        for (int j = 0; j < C; ++j) load(row[j], x + j * W);
        MHA_UNROLL_8
        for (int i = 0; i < R; ++i) {
          V weight;
          broadcast(weight, tile[i * lanes + q]);
          MHA_UNROLL_4
          for (int j = 0; j < C; ++j) multiply_add<R * C == 1>(sum[i][j], weight, row[j]);
        }
      }
    }
    MHA_UNROLL_8
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < C; ++j) store(out + i * a.out_stride + j * W, sum[i][j]);
    }
  }
};

/// The same for data that is not all finite: a pair whose `visible`, which lies as s does, is 0 adds nothing even if x
/// is NaN or infinite; else the bits are those of OuterBody.
template <class A> struct GuardedOuterBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(OuterArgs<A> a, const A* visible) {
    using V = vector_t<A, Isa>;
    constexpr Index W = Vector<A, Isa>::width;
    for (Index k = 0; k < a.n; ++k)
      for (Index d = 0; d < a.dim; d += W) {
        A* const out = a.out + k * a.out_stride + d;
        V sum, row, weight;
        load(sum, out);
        for (Index q = 0; q < a.queries; ++q) {
          const std::ptrdiff_t at = q / a.lanes * a.tile_stride + std::ptrdiff_t{k} * a.lanes + q % a.lanes;
          if (visible[at] == A(0)) continue;
          load(row, a.x + q * a.x_stride + d);
          broadcast(weight, a.s[at]);
          multiply_add<true>(sum, weight, row);
        }
        store(out, sum);
      }
  }
};

/// to ← to + from (n), n a whole number of registers.
template <class A> struct AddRowsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const A* from, std::ptrdiff_t n, A* to) {
    for (std::ptrdiff_t i = 0; i < n; i += Vector<A, Isa>::width) {
      vector_t<A, Isa> x, y;
      load(x, from + i);
      load(y, to + i);
      y = y + x;
      store(to + i, y);
    }
  }
};

/// The kernels of one scalar at one instruction-set level for tiles of this many queries.
template <class A> struct BackwardKernels {
  TileKernels<A> tile;  ///< scores also multiply values by d_out, values also sum dQ
  void (*weight_gradient)(A* s, A* dp, const A* derivative, Index n, Index lanes, BackwardRows<A> rows, A slope);
  void (*outer)(OuterArgs<A>);
  void (*guarded_outer)(OuterArgs<A>, const A* visible);
  void (*add_rows)(const A* from, std::ptrdiff_t n, A* to);
};

template <class A> BackwardKernels<A> backward_kernels(IsaLevel level, Index queries) {
  return with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    constexpr int rows = Isa::level == IsaLevel::baseline ? 4 : 6, columns = Isa::registers == 32 ? 4 : 2;
    return BackwardKernels<A>{tile_kernels<A>(level, queries), &Isa::template run<WeightGradientBody<A>>,
                              &Isa::template run<OuterBody<A, rows, columns>>, &Isa::template run<GuardedOuterBody<A>>,
                              &Isa::template run<AddRowsBody<A>>};
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
