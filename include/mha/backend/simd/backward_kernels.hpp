// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "../../config.hpp"
#include "dropout.hpp"
#include "exp2.hpp"
#include "isa.hpp"
#include "product_kernel.hpp"
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

/// A rule of weights: those of one register of lanes, as exponentials.
struct ExponentialWeights {
  template <class A, class Isa> struct Lanes {
    using V = vector_t<A, Isa>;
    V level, log2_sum;
    A slope;

    MHA_ALWAYS_INLINE Lanes(const BackwardRows<A>& rows, Index lane, A by) : slope(by) {
      load(level, rows.level + lane);
      load(log2_sum, rows.log2_sum + lane);
    }
    /// p ← the weights at logits x.
    MHA_ALWAYS_INLINE void of(const V& x, V& p) const {
      p = (x - level) * slope;
      round_here(p);
      p = p - log2_sum;
      exp2_in_place<A, Isa>(p);
    }
  };
};

/// What the pairs of one register of lanes share.
template <class A, class Isa, class Rule> struct WeightGradientLanes {
  using V = vector_t<A, Isa>;
  typename Rule::template Lanes<A, Isa> weights;
  V delta;

  MHA_ALWAYS_INLINE WeightGradientLanes(const BackwardRows<A>& rows, Index lane, A slope) : weights(rows, lane, slope) {
    load(delta, rows.delta + lane);
  }
  MHA_ALWAYS_INLINE WeightGradientLanes(const typename Rule::template Lanes<A, Isa>& prepared, const A* deltas)
      : weights(prepared) {
    load(delta, deltas);
  }

  /// Those of one key. With Drops, `factor` is of dropout.
  template <bool Drops>
  MHA_ALWAYS_INLINE void pairs(A* s, A* dp, const A* derivative, [[maybe_unused]] const A* factor) const {
    V p, d;
    of<Drops>(s, dp, derivative, factor, p, d);
    store(s, p);
    if (dp != nullptr) store(dp, d);
  }

  /// p ← what multiplies d_out, d ← dS, or 0 without a dp.
  template <bool Drops>
  MHA_ALWAYS_INLINE void of(const A* s, const A* dp, const A* derivative, [[maybe_unused]] const A* factor, V& p,
                            V& d) const {
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    const V zero{};
    V x, f, weight;
    load(x, s);
    weights.of(x, weight);
    weight = x == hidden ? zero : weight;
    p = weight;
    if constexpr (Drops) {
      load(f, factor);
      p = p * f;
    }
    d = zero;
    if (dp == nullptr) return;
    load(d, dp);
    if constexpr (Drops) {
      d = d * f;
      round_here(d);
    }
    d = weight * (d - delta);
    if (derivative != nullptr) {
      V by;
      load(by, derivative);
      d = d * by;
    }
    d = x == hidden ? zero : d;
  }
};

/// s ← P = 2^((s − level) · slope − log2 sum), dp ← dS = P · (dp − delta) · ∂t/∂s; both 0 where s is −∞. `derivative`
/// may be null; without dp there is only P.
///
/// Shapes    s, dp, derivative (n, count), rows `lanes` apart
template <class A, class Rule = ExponentialWeights> struct WeightGradientBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* s, A* dp, const A* derivative, Index n, Index lanes, Index count,
                                    BackwardRows<A> rows, A slope) {
    for (Index lane = 0; lane < count; lane += Vector<A, Isa>::width) {
      const WeightGradientLanes<A, Isa, Rule> of(rows, lane, slope);
      for (Index k = 0; k < n; ++k) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * lanes + lane;
        of.template pairs<false>(s + at, dp != nullptr ? dp + at : nullptr,
                                 derivative != nullptr ? derivative + at : nullptr, nullptr);
      }
    }
  }
};

/// The same of a call that drops, whose keys are those from `first` on: s ← f P, dp ← dS = P · (f dp − delta) · ∂t/∂s,
/// with the factors f of dropout.
template <class A, class Rule = ExponentialWeights> struct DroppedWeightGradientBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* s, A* dp, const A* derivative, Index n, Index lanes, Index count,
                                    BackwardRows<A> rows, A slope, Index first, LaneDraws draws) {
    constexpr Index W = Vector<A, Isa>::width;
    for (Index lane = 0; lane < count; lane += W) {
      const WeightGradientLanes<A, Isa, Rule> of(rows, lane, slope);
      const DropoutFactors<A, Isa> factors(draws.position + lane, draws.row + lane, draws.draws);
      A factor[std::size_t{4 * W}];
      std::ptrdiff_t at = lane;
      for (Index k = first; k < first + n;) {
        factors.of(k / 4, +factor);
        for (const Index end = std::min(k / 4 * 4 + 4, first + n); k < end; ++k, at += lanes)
          of.template pairs<true>(s + at, dp != nullptr ? dp + at : nullptr,
                                  derivative != nullptr ? derivative + at : nullptr, factor + k % 4 * W);
      }
    }
  }
};

/// out (dim, registers of lanes) += valuesᵀ (dim, n) · p (n, the same registers): dQ. Rows of out and p are `lanes`
/// apart.
template <class A, int Rows, int Vectors> struct QueryGradientBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const A* values, std::ptrdiff_t stride, Index n, const A* p, std::ptrdiff_t lanes,
                                    Index dim, A* out) {
    Index d = 0;
    for (; d + Rows <= dim; d += Rows) rows<Isa, Rows>(values + d, stride, n, p, lanes, out + d * lanes);
    for (; d < dim; ++d) rows<Isa, 1>(values + d, stride, n, p, lanes, out + d * lanes);
  }

 private:
  template <class Isa, int R>
  MHA_ALWAYS_INLINE static void rows(const A* values, std::ptrdiff_t stride, Index n, const A* p, std::ptrdiff_t lanes,
                                     A* out) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    V sum[std::size_t{R}][std::size_t{Vectors}];
    MHA_UNROLL_8
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < Vectors; ++j) load(sum[i][j], out + i * lanes + j * W);
    }
    Index k = 0;
    if constexpr (R == Rows)
      for (; k + 4 <= n; k += 4, values += 4 * stride, p += 4 * lanes)
        add_four_products<Isa>(sum, values, stride, 1, p, lanes);
    for (; k < n; ++k, values += stride, p += lanes) add_products<Isa>(sum, values, 1, p);
    MHA_UNROLL_8
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < Vectors; ++j) store(out + i * lanes + j * W, sum[i][j]);
    }
  }
};

/// The operands of out (n keys, dim) += s (n keys, queries) · x (queries, dim), where the columns of s lie in tiles of
/// `lanes`. dim is a whole number of registers. Key k is seen by queries [first[k], last[k]) at most, where these are
/// given; the s of other queries is 0.
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
  const Index* first = nullptr;
  const Index* last = nullptr;
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
    Index begin = 0, end = a.queries;
    if (a.first != nullptr) {
      begin = *std::min_element(a.first + k, a.first + k + R);
      end = *std::max_element(a.last + k, a.last + k + R);
      if (begin >= end) return;
    }
    A* const out = a.out + k * a.out_stride + d;
    V sum[std::size_t{R}][std::size_t{C}];
    MHA_UNROLL_8
    for (int i = 0; i < R; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < C; ++j) load(sum[i][j], out + i * a.out_stride + j * W);
    }
    const std::ptrdiff_t lanes = a.lanes, x_stride = a.x_stride;
    const A* x = a.x + begin * x_stride + d;
    for (Index t = begin / a.lanes; t * a.lanes < end; ++t) {
      const A* const tile = a.s + t * a.tile_stride + k * lanes;
      const Index n = std::min(a.lanes, end - t * a.lanes);
      for (Index q = std::max(Index{0}, begin - t * a.lanes); q < n; ++q, x += x_stride) {
        V row[std::size_t{C}];
        MHA_UNROLL_4
        for (int j = 0; j < C; ++j) load(row[j], x + j * W);
        MHA_UNROLL_8
        for (int i = 0; i < R; ++i) multiply_add_all<R * C == 1>(sum[i], tile[i * lanes + q], row);
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

/// out (dim, lanes) += rows (n, dim)ᵀ · p (n, lanes), of some registers of the lanes.
template <class A>
using QueryGradientKernel = void (*)(const A* rows, std::ptrdiff_t stride, Index n, const A* p, std::ptrdiff_t lanes,
                                     Index dim, A* out);

/// What of the backward pass is no product, at one instruction-set level.
template <class A> struct PairKernels {
  void (*weight_gradient)(A* s, A* dp, const A* derivative, Index n, Index lanes, Index count, BackwardRows<A> rows,
                          A slope);
  void (*dropped_weight_gradient)(A* s, A* dp, const A* derivative, Index n, Index lanes, Index count,
                                  BackwardRows<A> rows, A slope, Index first, LaneDraws draws);
  void (*add_rows)(const A* from, std::ptrdiff_t n, A* to);
};

/// By a rule of weights.
template <class A, class Rule, class Isa> constexpr PairKernels<A> pair_kernels_of(Isa) {
  return {&Isa::template run<WeightGradientBody<A, Rule>>, &Isa::template run<DroppedWeightGradientBody<A, Rule>>,
          &Isa::template run<AddRowsBody<A>>};
}

/// The kernels of one scalar at one instruction-set level for tiles of this many queries.
template <class A> struct BackwardKernels : PairKernels<A> {
  TileKernels<A> tile;
  Index part;  ///< lanes that may be computed apart, with scores[i] and query_gradient[i] for i + 1 parts
  ProductKernel<A> scores[3];
  QueryGradientKernel<A> query_gradient[3];
  void (*outer)(OuterArgs<A>);
  void (*guarded_outer)(OuterArgs<A>, const A* visible);
};

template <class A> BackwardKernels<A> backward_kernels(IsaLevel level, Index queries) {
  return with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    constexpr int rows = Isa::minimal ? 4 : 6, columns = Isa::registers == 32 ? 4 : 2;
    constexpr int wide = Isa::registers == 32 ? 8 : 4;
    constexpr Index width = Vector<A, Isa>::width;
    BackwardKernels<A> k{
        pair_kernels_of<A, ExponentialWeights>(isa),     tile_kernels<A>(level, queries),        width, {}, {},
        &Isa::template run<OuterBody<A, rows, columns>>, &Isa::template run<GuardedOuterBody<A>>};
    if constexpr (Isa::minimal) {
      k.part = k.tile.lanes;
      k.scores[0] = k.tile.scores;
      k.query_gradient[0] = &Isa::template run<QueryGradientBody<A, wide, 2>>;
    } else {
      for (int i = 0; i < 3; ++i) k.scores[i] = tile_kernels<A>(level, (i + 1) * width).scores;
      k.query_gradient[0] = &Isa::template run<QueryGradientBody<A, 8, 1>>;
      k.query_gradient[1] = &Isa::template run<QueryGradientBody<A, wide, 2>>;
      k.query_gradient[2] = &Isa::template run<QueryGradientBody<A, wide, 3>>;
    }
    return k;
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
