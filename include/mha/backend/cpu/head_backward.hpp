// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "../backward.hpp"
#include "../simd/backward_kernels.hpp"
#include "../simd/score_derivative.hpp"
#include "../simd/score_gradient.hpp"
#include "../simd/tile_policies.hpp"
#include "../simd/transpose.hpp"
#include "../simd/widen.hpp"
#include "head_memory.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// A backward pass whose policies have lost their types.
template <class T> struct AnyBackwardCall {
  using A = Accumulator<T>;
  AttendBackwardCall<T, AnyKv<T>, simd::AnyMask<A>, simd::AnyScore<A>> call;
  simd::AnyScoreDerivative<A> derivative;
  simd::AnyScoreGradient<A> score_gradient;

  /// The call must outlive this.
  template <class Source, class M, class S, class Wanted>
  AnyBackwardCall(const AttendBackwardCall<T, Source, M, S, Wanted>& c, IsaLevel level)
      : call{simd::any_call(c.forward, level),
             c.out,
             c.d_out,
             c.d_log_sum_exp,
             c.level,
             c.sum,
             c.query,
             c.key,
             c.value,
             c.sink,
             c.key_offsets,
             c.score},
        derivative(c.forward.score, level),
        score_gradient(Wanted{}, c.forward.score, level) {}

  /// Whether the log-sum-exp's gradient needs weights without the sink: those with a large sink underflow.
  bool log_sum_exp_apart() const { return call.forward.sink.size > 0 && call.d_log_sum_exp.data != nullptr; }
};

/// The backward pass of one query head of one sequence in steps: its operands are prepared, pieces (n, m) of queries ×
/// keys are computed, any of them after (n − 1, m) and (n, m − 1), and the sums are stored.
///
/// Formula   S = K Qᵀ as in forward, P = 2^((S − level) slope − log2 sum), dS = P ∘ (V dOᵀ − D) ∘ ∂t/∂s,
///           dQᵀ += Kᵀ dS,  dV += P dO,  dK += dS Q;  D ← D − d_log_sum_exp, or with a sink
///           dS += 2^((S − level) slope − log2 sum without the sink) ∘ d_log_sum_exp ∘ ∂t/∂s
/// Numerics  P has the logits of forward bit for bit; a hidden pair adds exactly nothing
/// Source    Dao et al. 2022 (FlashAttention), algorithm 4
template <class T> class HeadBackward {
  using A = Accumulator<T>;
  static constexpr A log2e = std::numbers::log2e_v<A>;
  static constexpr Index block = BackwardTiling::block, together = BackwardTiling::together;

 public:
  HeadBackward(const AnyBackwardCall<T>& call, IsaLevel level, const simd::BackwardKernels<A>& kernels,
               const BackwardTiling& tiling, const HeadMemory<A>& memory, Index b, Index h)
      : call_(call.call),
        f_(call.call.forward),
        derivative_(call.derivative),
        score_gradient_(call.score_gradient),
        level_(level),
        kernels_(kernels),
        tiling_(tiling),
        at_(memory),
        b_(b),
        h_(h),
        queries_(f_.queries(b)),
        keys_(f_.keys(b)),
        tiles_(tiling.tiles(queries_)),
        wants_dots_(call_.query.wanted() || call_.key.wanted()),
        wants_ds_(wants_dots_ || score_gradient_.exists()),
        log_sum_exp_apart_(call.log_sum_exp_apart()),
        logits_are_dots_(!f_.score.exists && f_.scale > A(0) && f_.scale <= A(1)),
        slope_(logits_are_dots_ ? f_.scale * log2e : log2e) {}

  Index tiles() const { return tiles_; }
  Index query_pieces() const { return tiling_.query_pieces(queries_); }
  Index key_pieces() const { return BackwardTiling::key_pieces(keys_); }
  /// What the head adds to the gradient of the sink.
  double sink() const {
    double sum = 0;
    for (Index t = 0; t < tiles_; ++t) sum += at_.sink[t];
    return sum;
  }

  /// What the head adds to the gradients of the score's slots, to where the call has them.
  void store_slots() const {
    double* const to = call_.score.slots + (std::ptrdiff_t{b_} * f_.shape.heads + h_) * score_gradient_.slots();
    for (int j = 0; j < score_gradient_.slots(); ++j) {
      to[j] = 0;
      for (Index t = 0; t < tiles_; ++t) to[j] += at_.slots[std::ptrdiff_t{t} * score_gradient_.padded_slots() + j];
    }
  }

  /// The operands of tile t.
  void prepare_queries(Index t) const {
    const Index lanes = tiling_.lanes, first = t * lanes, count = std::min(lanes, queries_ - first);
    A* const q = rows(at_.q, first, tiling_.query_dim);
    A* const d_out = rows(at_.d_out, first, tiling_.value_dim);
    for (Index i = 0; i < lanes; ++i) {
      A* const to[] = {q + std::ptrdiff_t{i} * tiling_.query_dim, d_out + std::ptrdiff_t{i} * tiling_.value_dim};
      if (i >= count) {
        std::fill_n(to[0], tiling_.query_dim, A(0));
        std::fill_n(to[1], tiling_.value_dim, A(0));
        continue;
      }
      pack_row(f_.query(b_, first + i, h_), f_.q.stride[3], f_.head_dim, tiling_.query_dim, to[0]);
      pack_row(call_.row(call_.d_out, b_, first + i, h_), call_.d_out.stride[3], f_.value_dim, tiling_.value_dim,
               to[1]);
    }
    std::fill_n(slots_of(t), score_gradient_.padded_slots(), 0.);
    prepare_states(first, count, d_out);
    at_.sink[t] = sink_of(first, count);
    close_states(first, count);
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
      for (Index i = 0; i < run.count; ++i, ++key) {
        pack_row(run.key + i * run.key_stride, 1, f_.head_dim, tiling_.query_dim, rows(at_.k, key, tiling_.query_dim));
        pack_row(run.value + i * run.value_stride, 1, f_.value_dim, tiling_.value_dim,
                 rows(at_.v, key, tiling_.value_dim));
      }
    }
    const std::ptrdiff_t n = end - first;
    at_.finite[tiles_ + m] = finite(rows(at_.k, first, tiling_.query_dim), n * tiling_.query_dim) &&
                             finite(rows(at_.v, first, tiling_.value_dim), n * tiling_.value_dim);
    std::fill_n(rows(at_.dk, first, tiling_.query_dim), n * tiling_.query_dim, A(0));
    std::fill_n(rows(at_.dv, first, tiling_.value_dim), n * tiling_.value_dim, A(0));
  }

  /// Piece n of the queries against piece m of the keys.
  void piece(Index n, Index m, const BackwardScratch<A>& scratch) const {
    const Index tiles_end = std::min(tiles_, (n + 1) * tiling_.query_piece);
    const Index keys_end = std::min(keys_, (m + 1) * BackwardTiling::key_piece);
    for (Index t = n * tiling_.query_piece; t < tiles_end; t += together)
      for (Index k = m * BackwardTiling::key_piece; k < keys_end; k += block)
        some_tiles(t, std::min(together, tiles_end - t), k, std::min(block, keys_end - k), scratch);
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
    for (Index i = 0; i < count; ++i)
      call_.query.put_row(call_.query_row(b_, first + i, h_), to + std::ptrdiff_t{i} * tiling_.query_dim, f_.head_dim);
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
    const auto scaled = simd::with_isa(level_, [](auto isa) {
      return &decltype(isa)::template run<simd::StoreRowBody<A, A>, const A*, A, Index, A*>;
    });
    const auto store = [&](const GradientTo<T>& to, A* from, Index padded, Index dim, A scale) {
      for (Index k = first; to.wanted() && k < end; ++k) {
        A* const row = rows(from, k, padded);
        if (scale != A(1)) scaled(row, scale, padded, row);
        to.put_row(call_.key_row(to, b_, k, f_.kv_head(h_)), row, dim);
      }
    };
    store(call_.key, at_.dk, tiling_.query_dim, f_.head_dim, f_.scale);
    store(call_.value, at_.dv, tiling_.value_dim, f_.value_dim, A(1));
  }

 private:
  static A* rows(A* all, Index first, Index dim) { return all + std::ptrdiff_t{first} * dim; }

  void pack_row(const T* from, std::ptrdiff_t step, Index dim, Index padded, A* to) const {
    if (step == 1)
      simd::widen(level_, from, 0, 1, dim, to);
    else
      for (Index d = 0; d < dim; ++d) to[d] = static_cast<A>(from[d * step]);
    std::fill_n(to + dim, padded - dim, A(0));
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

  /// level, and D = d_out · out into delta.
  void prepare_states(Index first, Index count, const A* d_out) const {
    for (Index i = 0; i < tiling_.lanes; ++i) {
      at_.level[first + i] = i < count ? call_.level[f_.row_state(b_, h_, first + i)] : A(0);
      at_.delta[first + i] = i < count ? dot_out(first + i, d_out + std::ptrdiff_t{i} * tiling_.value_dim) : A(0);
    }
  }

  A dot_out(Index i, const A* d_out) const {
    const T* const out = call_.row(call_.out, b_, i, h_);
    constexpr Index parts = 8;
    A sums[parts] = {};
    Index d = 0;
    for (; d + parts <= f_.value_dim; d += parts)
      for (Index j = 0; j < parts; ++j) sums[j] += d_out[d + j] * static_cast<A>(out[(d + j) * call_.out.stride[3]]);
    for (; d < f_.value_dim; ++d) sums[0] += d_out[d] * static_cast<A>(out[d * call_.out.stride[3]]);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  bool is_empty(Index i) const {
    const std::ptrdiff_t row = f_.row_state(b_, h_, i);
    return call_.sum[row] == A(0) && call_.level[row] == -std::numeric_limits<A>::infinity();
  }
  /// The level in natural-log scale.
  A highest_logit(Index i) const { return logits_are_dots_ ? at_.level[i] * f_.scale : at_.level[i]; }

  /// What rows [first, first + count) add to the gradient of the sink.
  double sink_of(Index first, Index count) const {
    double total = 0;
    if (call_.sink == nullptr) return total;
    for (Index i = first; i < first + count; ++i) {
      if (is_empty(i)) continue;
      const double above = double(highest_logit(i)) - double(f_.sink[h_]);
      total -= double(at_.delta[i]) / (1 + double(call_.sum[f_.row_state(b_, h_, i)]) * std::exp(above));
    }
    return total;
  }

  /// log2 of the denominators, and what the log-sum-exp's gradient changes of delta.
  void close_states(Index first, Index count) const {
    for (Index i = first; i < first + tiling_.lanes; ++i) {
      if (i >= first + count) {
        at_.log2_sum[i] = std::numeric_limits<A>::infinity();  // 2^−∞: a lane without a query weighs nothing
        if (log_sum_exp_apart_) {
          at_.own_log2_sum[i] = at_.log2_sum[i];
          at_.own_delta[i] = A(0);
        }
        continue;
      }
      const A sum = call_.sum[f_.row_state(b_, h_, i)];
      A denominator = sum;
      if (f_.sink.size > 0) denominator += std::exp2((static_cast<A>(f_.sink[h_]) - highest_logit(i)) * log2e);
      at_.log2_sum[i] = std::log2(denominator);
      if (log_sum_exp_apart_) {
        at_.own_log2_sum[i] = std::log2(sum);
        at_.own_delta[i] = -call_.row_d_log_sum_exp(b_, h_, i);
      } else if (call_.d_log_sum_exp.data != nullptr && !is_empty(i)) {
        at_.delta[i] -= call_.row_d_log_sum_exp(b_, h_, i);
      }
    }
  }

  /// Tiles [t, t + count) against keys [k, k + n).
  void some_tiles(Index t, Index count, Index k, Index n, const BackwardScratch<A>& scratch) const {
    simd::KeyRange seen[std::size_t{together}];
    Index begin = k + n, end = k;
    bool clean = at_.finite[tiles_ + k / BackwardTiling::key_piece], whole = true;
    for (Index g = 0; g < count; ++g) {
      clean = clean && at_.finite[t + g];
      seen[g] = f_.mask.visible(tile_queries(t + g), k, k + n, kernels_.tile.rows);
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
      const simd::TileQueries queries = tile_queries(t, j * part, part);
      of[j] = queries.count > 0 ? f_.mask.visible(queries, keys.begin, keys.end, kernels_.tile.rows)
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
    const Index lanes = tiling_.lanes, n = keys.end - keys.begin, row = t * lanes + from;
    const Index which = (to - from) / kernels_.part - 1;
    const std::ptrdiff_t at = std::ptrdiff_t{before} * block + std::ptrdiff_t{keys.begin - in.first} * lanes + from;
    A *const p = scratch.p + at, *const ds = scratch.ds + at, *const visible = scratch.visible + at;
    const A* const k = rows(at_.k, keys.begin, tiling_.query_dim);
    const bool evaluates = score_gradient_.evaluates();
    const A* const derivative = derivative_.exists() && wants_dots_ && !evaluates ? scratch.derivative + at : nullptr;
    const simd::TileQueries of = tile_queries(t, from, to - from);
    for (Index i = keys.begin - in.first; i < keys.end - in.first; ++i) {
      scratch.first[i] = std::min(scratch.first[i], before + from);
      scratch.last[i] = std::max(scratch.last[i], before + from + of.count);
    }
    const auto product = [&](const A* of_keys, Index padded, A* of_queries, Index dim, A* result) {
      kernels_.scores[which](
          {of_keys, padded, rows(of_queries, t * lanes, dim) + from, lanes, result, lanes, n, dim, false, {}});
    };
    product(k, tiling_.query_dim, at_.q_lanes, f_.head_dim, p);
    if (derivative != nullptr)
      derivative_.apply(of, p, lanes, to - from, f_.scale, keys.begin, n, scratch.derivative + at);
    const std::ptrdiff_t apart = std::ptrdiff_t{keys.begin - in.first} * lanes + from;  // in memory of one tile
    if (evaluates)
      for (Index i = 0; i < n; ++i)
        std::copy_n(p + std::ptrdiff_t{i} * lanes, to - from, scratch.dots + apart + std::ptrdiff_t{i} * lanes);
    if (!logits_are_dots_) f_.score.apply(of, p, lanes, f_.scale, keys.begin, keys.end);
    f_.mask.hide(of, p, lanes, keys, kernels_.tile.rows);
    if (in.guarded)
      for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{n} * lanes; ++i)
        visible[i] = p[i] == -std::numeric_limits<A>::infinity() ? A(0) : A(1);
    if (wants_ds_)
      product(rows(at_.v, keys.begin, tiling_.value_dim), tiling_.value_dim, at_.d_out_lanes, f_.value_dim, ds);
    if (log_sum_exp_apart_ && wants_ds_) log_sum_exp_gradient(p, derivative, n, to - from, row, scratch);
    const simd::BackwardRows<A> states{at_.level + row, at_.log2_sum + row, at_.delta + row};
    if (f_.dropout.exist())
      drop(p, wants_ds_ ? ds : nullptr, derivative, n, to - from, states, keys.begin, row);
    else
      kernels_.weight_gradient(p, wants_ds_ ? ds : nullptr, derivative, n, lanes, to - from, states, slope_);
    if (log_sum_exp_apart_ && wants_ds_)
      for (Index i = 0; i < n; ++i)
        kernels_.add_rows(scratch.own_ds + std::ptrdiff_t{i} * lanes, to - from, ds + std::ptrdiff_t{i} * lanes);
    if (score_gradient_.exists()) score_gradients(t, of, ds, to - from, keys, apart, scratch);
    if (!call_.query.wanted()) return;
    A* const dq = rows(at_.dq, t * lanes, f_.head_dim) + from;
    if (in.guarded)
      kernels_.tile.guarded_values(k, tiling_.query_dim, n, ds, visible, scratch.ones, f_.head_dim, dq, lanes);
    else
      kernels_.query_gradient[which](k, tiling_.query_dim, n, ds, lanes, f_.head_dim, dq);
  }

  /// P and dS of n keys of `count` queries from `row` on, of a call that drops.
  MHA_NO_INLINE void drop(A* p, A* ds, const A* derivative, Index n, Index count, const simd::BackwardRows<A>& states,
                          Index key, Index row) const {
    simd::DroppingLanes lanes;
    lanes.set(f_, b_, h_, f_.position(b_, row), 0, count);
    kernels_.dropped_weight_gradient(p, ds, derivative, n, tiling_.lanes, count, states, slope_, key,
                                     lanes.of(f_.dropout));
  }

  /// What `count` lanes of tile t and some keys, with dt in ds, add to the gradients of the score's own numbers; dt ←
  /// ds. In memory of one tile these pairs are at `apart`.
  MHA_NO_INLINE void score_gradients(Index t, const simd::TileQueries& of, A* ds, Index count,
                                     const simd::KeyRange& keys, std::ptrdiff_t apart,
                                     const BackwardScratch<A>& scratch) const {
    const Index lanes = tiling_.lanes, n = keys.end - keys.begin;
    if (score_gradient_.evaluates())
      score_gradient_.apply(of, scratch.dots + apart, ds, lanes, count, f_.scale, keys.begin, n, wants_dots_,
                            slots_of(t), scratch.tables, apart);
    for (int j = 0; j < score_gradient_.tables(); ++j) {
      const PairTable<A, double>& table = call_.score.tables[j];
      const A* const from = score_gradient_.evaluates() ? scratch.tables[j] + apart : ds;
      for (Index i = 0; i < of.count; ++i) {
        std::ptrdiff_t at = table.at(b_, h_, of.begin + i, keys.begin);
        for (Index k = 0; k < n; ++k, at += table.stride[3]) table.add(at, from[std::ptrdiff_t{k} * lanes + i]);
      }
    }
  }
  double* slots_of(Index t) const { return at_.slots + std::ptrdiff_t{t} * score_gradient_.padded_slots(); }

  /// scratch.own_ds ← what n keys of `count` lanes, with logits s, add to dS through the log-sum-exp.
  void log_sum_exp_gradient(const A* s, const A* derivative, Index n, Index count, Index row,
                            const BackwardScratch<A>& scratch) const {
    for (Index i = 0; i < n; ++i) {
      const std::ptrdiff_t at = std::ptrdiff_t{i} * tiling_.lanes;
      std::copy_n(s + at, count, scratch.own_p + at);
      std::fill_n(scratch.own_ds + at, count, A(0));
    }
    kernels_.weight_gradient(scratch.own_p, scratch.own_ds, derivative, n, tiling_.lanes, count,
                             {at_.level + row, at_.own_log2_sum + row, at_.own_delta + row}, slope_);
  }

  simd::TileQueries tile_queries(Index t) const { return tile_queries(t, 0, tiling_.lanes); }
  simd::TileQueries tile_queries(Index t, Index from, Index lanes) const {
    const Index first = t * tiling_.lanes + from;
    return {b_, h_, f_.position(b_, first), std::clamp(queries_ - first, Index{0}, lanes)};
  }

  const AttendBackwardCall<T, AnyKv<T>, simd::AnyMask<A>, simd::AnyScore<A>>& call_;
  const simd::AnyCall<T>& f_;
  const simd::AnyScoreDerivative<A>& derivative_;
  const simd::AnyScoreGradient<A>& score_gradient_;
  const IsaLevel level_;
  const simd::BackwardKernels<A>& kernels_;
  const BackwardTiling& tiling_;
  const HeadMemory<A>& at_;
  const Index b_, h_, queries_, keys_, tiles_;
  const bool wants_dots_, wants_ds_, log_sum_exp_apart_, logits_are_dots_;
  const A slope_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
