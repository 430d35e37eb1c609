// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "../../cache/kv_source.hpp"
#include "../backward.hpp"
#include "../backward_plan.hpp"
#include "../simd/backward_kernels.hpp"
#include "../simd/gradient_rows.hpp"
#include "../simd/pair_gradients.hpp"
#include "../simd/tile_lanes.hpp"
#include "../simd/transpose.hpp"
#include "../simd/widen.hpp"
#include "head_memory.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

using simd::AnyBackwardCall;

/// The backward pass of one query head of one sequence in steps: its operands are prepared, pieces (n, m) of queries ×
/// keys are computed, any of them after (n − 1, m) and (n, m − 1), and the sums are stored.
///
/// Formula   S = K Qᵀ as in forward, P and dS from S and V dOᵀ as in PairGradients,
///           dQᵀ += Kᵀ dS,  dV += P dO,  dK += dS Q
/// Numerics  P has the logits of forward bit for bit; a hidden pair adds exactly nothing
/// Source    Dao et al. 2022 (FlashAttention), algorithm 4
template <class T> class HeadBackward : public simd::BackwardHead<T, BackwardTiling> {
  using A = Accumulator<T>;
  using Base = simd::BackwardHead<T, BackwardTiling>;
  using Base::call_, Base::f_, Base::tiling_, Base::pairs_, Base::b_, Base::h_, Base::queries_, Base::keys_,
      Base::tiles_;
  static constexpr Index block = BackwardTiling::block, together = BackwardTiling::together;

 public:
  HeadBackward(const AnyBackwardCall<T>& call, IsaLevel level, const simd::BackwardKernels<A>& kernels,
               const BackwardTiling& tiling, const HeadMemory<A>& memory, Index b, Index h)
      : Base(call, kernels, tiling, memory.rows, b, h), level_(level), kernels_(kernels), at_(memory) {}

  /// The operands of tile t.
  void prepare_queries(Index t) const {
    const Index lanes = tiling_.lanes, first = t * lanes, count = std::min(lanes, queries_ - first);
    A* const q = rows(at_.q, first, tiling_.query_dim);
    A* const d_out = rows(at_.d_out, first, tiling_.value_dim);
    const auto pack = [&](const T* from, const TensorView<const T, 4>& of, Index dim, Index padded, A* to) {
      pack_rows(from, of.stride[1], of.stride[3], count, dim, padded, to);
      std::fill_n(rows(to, count, padded), std::ptrdiff_t{lanes - count} * padded, A(0));
    };
    pack(f_.query(b_, first, h_), f_.q, f_.head_dim, tiling_.query_dim, q);
    pack(call_.row(call_.d_out, b_, first, h_), call_.d_out, f_.value_dim, tiling_.value_dim, d_out);
    pairs_.prepare(t, count, d_out, tiling_.value_dim);
    at_.finite[t] = finite(q, std::ptrdiff_t{lanes} * tiling_.query_dim) &&
                    finite(d_out, std::ptrdiff_t{lanes} * tiling_.value_dim);
    to_lanes(q, tiling_.query_dim, f_.head_dim, rows(at_.q_lanes, first, f_.head_dim));
    to_lanes(d_out, tiling_.value_dim, f_.value_dim, rows(at_.d_out_lanes, first, f_.value_dim));
    std::fill_n(rows(at_.dq, first, f_.head_dim), std::ptrdiff_t{lanes} * f_.head_dim, A(0));
  }

  /// The operands of piece m of the keys.
  void prepare_keys(Index m) const {
    const Index first = m * BackwardTiling::key_piece, end = std::min(keys_, first + BackwardTiling::key_piece);
    for (Index key = first; key < end;) {
      const KvRun<T> run = f_.kv.run(b_, f_.kv_head(h_), key, end);
      pack_rows(run.key, run.key_stride, 1, run.count, f_.head_dim, tiling_.query_dim,
                rows(at_.k, key, tiling_.query_dim));
      pack_rows(run.value, run.value_stride, 1, run.count, f_.value_dim, tiling_.value_dim,
                rows(at_.v, key, tiling_.value_dim));
      key += run.count;
    }
    const std::ptrdiff_t n = end - first;
    at_.finite[tiles_ + m] = finite(rows(at_.k, first, tiling_.query_dim), n * tiling_.query_dim) &&
                             finite(rows(at_.v, first, tiling_.value_dim), n * tiling_.value_dim);
    std::fill_n(rows(at_.dk, first, tiling_.query_dim), n * tiling_.query_dim, A(0));
    std::fill_n(rows(at_.dv, first, tiling_.value_dim), n * tiling_.value_dim, A(0));
  }

  /// Pieces [n, end) of the queries against pieces [m, m_end) of the keys.
  void pieces(Index n, Index end, Index m, Index m_end, const BackwardScratch<A>& scratch) const {
    for (; m < m_end; ++m) {
      const Index keys_end = std::min(keys_, (m + 1) * BackwardTiling::key_piece);
      for (Index i = n; i < end; ++i) {
        const Index tiles_end = std::min(tiles_, (i + 1) * tiling_.query_piece);
        for (Index t = i * tiling_.query_piece; t < tiles_end; t += together)
          for (Index k = m * BackwardTiling::key_piece; k < keys_end; k += block)
            some_tiles(t, std::min(together, tiles_end - t), k, std::min(block, keys_end - k), scratch);
      }
    }
  }

  /// dQ of tile t into its destination.
  void store_queries(Index t) const {
    if (!call_.query.wanted()) return;
    const Index lanes = tiling_.lanes, first = t * lanes, count = std::min(lanes, queries_ - first);
    A* const to = rows(at_.q, first, tiling_.query_dim);  // the queries are not needed any more
    const A* const from = rows(at_.dq, first, f_.head_dim);
    A scale[64 / sizeof(A)];
    std::fill_n(scale, kernels_.tile.width, f_.scale);
    const auto unpack = simd::with_isa(level_, [](auto isa) {
      return &decltype(isa)::template run<simd::UnpackBody<A, A>, const A*, std::ptrdiff_t, const A*, Index, A*,
                                          std::ptrdiff_t>;
    });
    for (Index i = 0; i < lanes; i += kernels_.tile.width)
      unpack(from + i, lanes, scale, f_.head_dim, to + std::ptrdiff_t{i} * tiling_.query_dim, tiling_.query_dim);
    simd::put_rows(level_, call_.query, to, tiling_.query_dim, count, call_.query_row(b_, first, h_), 0, f_.head_dim,
                   A(1));
  }

  /// The sums over piece m of the keys += those of another head that reads them.
  void add_keys(Index m, const HeadMemory<A>& other) const {
    const Index first = m * BackwardTiling::key_piece, n = std::min(keys_ - first, BackwardTiling::key_piece);
    const auto add = [&](A* to, const A* from, Index dim) {
      kernels_.add_rows(from + std::ptrdiff_t{first} * dim, std::ptrdiff_t{n} * dim, rows(to, first, dim));
    };
    add(at_.dk, other.dk, tiling_.query_dim);
    add(at_.dv, other.dv, tiling_.value_dim);
  }

  /// dK and dV of piece m of the keys into their destinations.
  void store_keys(Index m) const {
    const Index first = m * BackwardTiling::key_piece, end = std::min(keys_, first + BackwardTiling::key_piece);
    const auto store = [&](const GradientTo<T>& to, A* from, Index padded, Index dim, A scale) {
      if (to.wanted())
        simd::put_rows(level_, to, rows(from, first, padded), padded, end - first,
                       call_.key_row(to, b_, first, f_.kv_head(h_)), 0, dim, scale);
    };
    store(call_.key, at_.dk, tiling_.query_dim, f_.head_dim, f_.scale);
    store(call_.value, at_.dv, tiling_.value_dim, f_.value_dim, A(1));
  }

 private:
  static A* rows(A* all, Index first, Index dim) { return all + std::ptrdiff_t{first} * dim; }

  /// to (n, padded) = n rows at a stride, their elements `step` apart, and zeros.
  void pack_rows(const T* from, std::ptrdiff_t stride, std::ptrdiff_t step, Index n, Index dim, Index padded,
                 A* to) const {
    if (step == 1 && dim == padded) return simd::widen(level_, from, stride, n, dim, to);
    for (Index i = 0; i < n; ++i, to += padded) {
      const T* const row = from + i * stride;  // the stride of a single row may be any
      if (step == 1)
        simd::widen(level_, row, 0, 1, dim, to);
      else
        for (Index d = 0; d < dim; ++d) to[d] = static_cast<A>(row[d * step]);
      std::fill_n(to + dim, padded - dim, A(0));
    }
  }

  /// to (dim, lanes) = a tile's rows.
  void to_lanes(const A* from, Index padded, Index dim, A* to) const {
    const auto pack = simd::with_isa(level_, [](auto isa) {
      return &decltype(isa)::template run<simd::PackBody<A, A>, const A*, std::ptrdiff_t, Index, A*, std::ptrdiff_t>;
    });
    for (Index i = 0; i < tiling_.lanes; i += kernels_.tile.width)
      pack(from + std::ptrdiff_t{i} * padded, padded, dim, to + i, tiling_.lanes);
  }

  bool finite(const A* x, std::ptrdiff_t n) const {
    A sums[64 / sizeof(A)];
    kernels_.tile.non_finite(x, n, sums);
    return std::all_of(sums, sums + kernels_.tile.width, [](A s) { return s == A(0); });
  }

  /// Tiles [t, t + count) against keys [k, k + n).
  void some_tiles(Index t, Index count, Index k, Index n, const BackwardScratch<A>& scratch) const {
    simd::KeyRange seen[std::size_t{together}];
    Index begin = k + n, end = k;
    bool clean = at_.finite[tiles_ + k / BackwardTiling::key_piece], whole = true;
    for (Index g = 0; g < count; ++g) {
      clean = clean && at_.finite[t + g];
      seen[g] = f_.mask.visible(pairs_.queries(t + g), k, k + n, kernels_.tile.rows);
      whole = whole && seen[g].seen == TileVisibility::full;
      if (seen[g].seen == TileVisibility::none) seen[g].begin = seen[g].end = k;
      if (seen[g].begin == seen[g].end) continue;
      begin = std::min(begin, seen[g].begin);
      end = std::max(end, seen[g].end);
    }
    if (begin >= end) return;
    const Index lanes = tiling_.lanes, first = t * lanes, queries = std::min(count * lanes, queries_ - first);
    std::fill_n(scratch.first, n, queries);
    std::fill_n(scratch.last, n, Index{0});
    const Block block_of{k, begin, end, !clean, &scratch};
    for (Index g = 0; g < count; ++g) one_tile(t + g, g * lanes, seen[g], block_of);
    const auto sum = [&](const GradientTo<T>& wanted, const A* s, const A* x, Index dim, A* to) {
      if (!wanted.wanted()) return;
      simd::OuterArgs<A> args{s + (begin - k) * lanes,
                              lanes,
                              std::ptrdiff_t{block} * lanes,
                              end - begin,
                              queries,
                              x + std::ptrdiff_t{first} * dim,
                              dim,
                              dim,
                              rows(to, begin, dim),
                              dim};
      if (!whole) {
        args.first = scratch.first + (begin - k);
        args.last = scratch.last + (begin - k);
      }
      if (clean)
        kernels_.outer(args);
      else
        kernels_.guarded_outer(args, scratch.visible + (begin - k) * lanes);
    };
    sum(call_.value, scratch.p, at_.d_out, tiling_.value_dim, at_.dv);
    sum(call_.key, scratch.ds, at_.q, tiling_.query_dim, at_.dk);
  }

  /// Keys [begin, end) of the block from `first` on that some of its tiles see.
  struct Block {
    Index first, begin, end;
    bool guarded;
    const BackwardScratch<A>* scratch;
  };

  /// Tile t, whose queries are `before` queries after the first of the block. Registers of queries that see none of
  /// some keys are left out: they would add exactly nothing.
  void one_tile(Index t, Index before, const simd::KeyRange& keys, const Block& in) const {
    const Index lanes = tiling_.lanes;
    hide(before, in.begin, std::min(keys.begin, in.end), 0, lanes, in);
    if (keys.begin < keys.end) hide(before, std::max(keys.end, in.begin), in.end, 0, lanes, in);
    if (keys.begin == keys.end) return hide(before, in.begin, in.end, 0, lanes, in);
    const Index part = kernels_.part, parts = lanes / part;
    if (keys.seen == TileVisibility::full || in.guarded || parts == 1) return registers(t, before, keys, 0, lanes, in);
    simd::KeyRange of[3];
    Index cuts[8] = {keys.begin, keys.end};
    Index count = 2;
    for (Index j = 0; j < parts; ++j) {
      const bool some = t * lanes + j * part < queries_;
      of[j] = some ? f_.mask.visible(pairs_.queries(t, j * part, part), keys.begin, keys.end, kernels_.tile.rows)
                   : simd::KeyRange{keys.begin, keys.end, TileVisibility::none};
      if (of[j].seen == TileVisibility::none) of[j].end = of[j].begin;
      cuts[count++] = of[j].begin;
      cuts[count++] = of[j].end;
    }
    std::sort(cuts, cuts + count);
    for (Index c = 0; c + 1 < count; ++c) {
      const simd::KeyRange some{cuts[c], cuts[c + 1], TileVisibility::partial};
      if (some.begin == some.end) continue;
      const auto sees = [&](Index j) { return of[j].begin <= some.begin && some.end <= of[j].end; };
      Index from = 0, to = parts;
      while (from < parts && !sees(from)) ++from;
      while (to > from && !sees(to - 1)) --to;
      hide(before, some.begin, some.end, 0, from * part, in);
      hide(before, some.begin, some.end, to * part, lanes, in);
      if (from < to) registers(t, before, some, from * part, to * part, in);
    }
  }

  /// Keys [begin, end) weigh nothing for lanes [from, to) of a tile.
  void hide(Index before, Index begin, Index end, Index from, Index to, const Block& in) const {
    for (Index k = begin; k < end && from < to; ++k) {
      const std::ptrdiff_t at = (std::ptrdiff_t{before} * block) + std::ptrdiff_t{k - in.first} * tiling_.lanes;
      std::fill(in.scratch->p + at + from, in.scratch->p + at + to, A(0));
      std::fill(in.scratch->ds + at + from, in.scratch->ds + at + to, A(0));
      std::fill(in.scratch->visible + at + from, in.scratch->visible + at + to, A(0));
    }
  }

  /// P and dS of lanes [from, to) of tile t for some keys, and what they add to dQ.
  void registers(Index t, Index before, const simd::KeyRange& keys, Index from, Index to, const Block& in) const {
    const BackwardScratch<A>& scratch = *in.scratch;
    const Index lanes = tiling_.lanes, n = keys.end - keys.begin;
    const Index which = (to - from) / kernels_.part - 1;
    const std::ptrdiff_t apart = std::ptrdiff_t{keys.begin - in.first} * lanes + from;  // in memory of one tile
    const std::ptrdiff_t at = std::ptrdiff_t{before} * block + apart;
    A *const p = scratch.p + at, *const ds = scratch.ds + at, *const visible = scratch.visible + at;
    const A* const k = rows(at_.k, keys.begin, tiling_.query_dim);
    const typename simd::PairGradients<T>::Pairs of{t, from, to - from, keys, apart};
    const Index count = pairs_.queries(t, from, to - from).count;
    for (Index i = keys.begin - in.first; i < keys.end - in.first; ++i) {
      scratch.first[i] = std::min(scratch.first[i], before + from);
      scratch.last[i] = std::max(scratch.last[i], before + from + count);
    }
    const auto product = [&](const A* of_keys, Index padded, A* of_queries, Index dim, A* result) {
      kernels_.scores[which](
          {of_keys, padded, rows(of_queries, t * lanes, dim) + from, lanes, result, lanes, n, dim, false, {}});
    };
    product(k, tiling_.query_dim, at_.q_lanes, f_.head_dim, p);
    pairs_.logits(of, p, kernels_.tile.rows, scratch.pairs);
    if (in.guarded)
      for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{n} * lanes; ++i)
        visible[i] = p[i] == -std::numeric_limits<A>::infinity() ? A(0) : A(1);
    if (pairs_.wants_ds())
      product(rows(at_.v, keys.begin, tiling_.value_dim), tiling_.value_dim, at_.d_out_lanes, f_.value_dim, ds);
    pairs_.weigh(of, p, ds, scratch.pairs);
    if (!call_.query.wanted()) return;
    A* const dq = rows(at_.dq, t * lanes, f_.head_dim) + from;
    if (in.guarded)
      kernels_.tile.guarded_values(k, tiling_.query_dim, n, ds, visible, scratch.ones, f_.head_dim, dq, lanes);
    else
      kernels_.query_gradient[which](k, tiling_.query_dim, n, ds, lanes, f_.head_dim, dq);
  }

  const IsaLevel level_;
  const simd::BackwardKernels<A>& kernels_;
  const HeadMemory<A>& at_;
};

/// The kernels of a call and the sizes of its parts, as BackwardHeads wants them.
template <class T> class BackwardMachine {
  using A = Accumulator<T>;

 public:
  using Scalar = T;
  using Memory = HeadMemory<A>;
  using Scratch = BackwardScratch<A>;

  BackwardMachine(const AnyBackwardCall<T>& call, IsaLevel level)
      : call_(call),
        level_(level),
        kernels_(simd::backward_kernels<A>(level, call.call.forward.shape.queries)),
        tiling_(kernels_.tile, call.call.forward.head_dim, call.call.forward.value_dim) {}

  const auto& call() const { return call_.call; }
  int score_tables() const { return call_.score_gradient.tables(); }
  const BackwardTiling& tiling() const { return tiling_; }
  Memory memory(Workspace::Frame& frame) const {
    const simd::AnyCall<T>& f = call_.call.forward;
    return Memory(frame, tiling_, f.shape.queries, f.shape.keys, f.head_dim, f.value_dim, call_.log_sum_exp_apart(),
                  call_.score_gradient.padded_slots());
  }
  Scratch scratch(Workspace::Frame& frame) const {
    const auto& score = call_.score_gradient;
    return Scratch(frame, tiling_.lanes, call_.log_sum_exp_apart(), score.evaluates(), score.tables());
  }
  HeadBackward<T> head(const Memory& memory, Index b, Index h) const {
    return {call_, level_, kernels_, tiling_, memory, b, h};
  }

 private:
  const AnyBackwardCall<T>& call_;
  const IsaLevel level_;
  const simd::BackwardKernels<A> kernels_;
  const BackwardTiling tiling_;
};

/// The backward pass in accumulator precision.
template <class T, class Threads>
void attend_backward(const AnyBackwardCall<T>& call, IsaLevel level, Workspace& workspace, const Threads& threads) {
  run_heads(BackwardMachine<T>(call, level), workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
