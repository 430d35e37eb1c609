// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "../backward.hpp"
#include "backward_kernels.hpp"
#include "backward_memory.hpp"
#include "logit_scale.hpp"
#include "score_derivative.hpp"
#include "score_gradient.hpp"
#include "tile_policies.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// What of a head's backward pass is no product, on tiles (keys, lanes) with queries in lanes: what every machine with
/// such tiles shares.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// A backward pass whose policies have lost their types.
template <class T> struct AnyBackwardCall {
  using A = Accumulator<T>;
  AttendBackwardCall<T, AnyKv<T>, AnyMask<A>, AnyScore<A>> call;
  AnyScoreDerivative<A> derivative;
  AnyScoreGradient<A> score_gradient;

  /// The call must outlive this.
  template <class Source, class M, class S, class Wanted>
  AnyBackwardCall(const AttendBackwardCall<T, Source, M, S, Wanted>& c, IsaLevel level)
      : call(c.template with<NoScoreGradients>(any_call(c.forward, level))),
        derivative(c.forward.score, level),
        score_gradient(Wanted{}, c.forward.score, level) {}

  /// Whether the log-sum-exp's gradient needs weights without the sink: those with a large sink underflow.
  bool log_sum_exp_apart() const { return call.forward.sink.size > 0 && call.d_log_sum_exp.data != nullptr; }
};

/// The rows and pairs of one query head of one sequence.
///
/// Formula   P = 2^((S − level) slope − log2 sum), dS = P ∘ (dP − D) ∘ ∂t/∂s;  D ← D − d_log_sum_exp, or with a sink
///           dS += 2^((S − level) slope − log2 sum without the sink) ∘ d_log_sum_exp ∘ ∂t/∂s
/// Numerics  a hidden pair adds exactly nothing
template <class T> class PairGradients {
  using A = Accumulator<T>;

 public:
  PairGradients(const AnyBackwardCall<T>& call, const PairKernels<A>& kernels, const RowMemory<A>& memory, Index lanes,
                Index b, Index h)
      : call_(call.call),
        f_(call.call.forward),
        derivative_(call.derivative),
        score_gradient_(call.score_gradient),
        kernels_(kernels),
        at_(memory),
        lanes_(lanes),
        b_(b),
        h_(h),
        queries_(f_.queries(b)),
        wants_dots_(call_.query.wanted() || call_.key.wanted()),
        wants_ds_(wants_dots_ || score_gradient_.exists()),
        log_sum_exp_apart_(call.log_sum_exp_apart()),
        scale_(f_) {}

  /// Whether anything but dV is wanted.
  bool wants_ds() const { return wants_ds_; }

  /// The states of the `count` queries of tile t, whose d_out are rows `stride` apart.
  template <class E> void prepare(Index t, Index count, const E* d_out, std::ptrdiff_t stride) const {
    const Index first = t * lanes_;
    std::fill_n(slots_of(t), score_gradient_.padded_slots(), 0.);
    for (Index i = 0; i < lanes_; ++i) {
      at_.level[first + i] = i < count ? call_.level[f_.row_state(b_, h_, first + i)] : A(0);
      at_.delta[first + i] = i < count ? dot_out(first + i, d_out + i * stride) : A(0);
    }
    at_.sink[t] = sink_of(first, count);
    close_states(first, count);
  }

  /// What the first `tiles` tiles add to the gradient of the sink.
  double sink(Index tiles) const {
    double sum = 0;
    for (Index t = 0; t < tiles; ++t) sum += at_.sink[t];
    return sum;
  }
  /// What they add to the gradients of the score's slots, to where the call has them.
  void store_slots(Index tiles) const {
    double* const to = call_.score.slots + (std::ptrdiff_t{b_} * f_.shape.heads + h_) * score_gradient_.slots();
    std::fill_n(to, score_gradient_.slots(), 0.);
    for (Index t = 0; t < tiles; ++t)
      for (int j = 0; j < score_gradient_.slots(); ++j)
        to[j] += at_.slots[std::ptrdiff_t{t} * score_gradient_.padded_slots() + j];
  }

  /// `lanes` lanes of tile t from lane `from` on.
  TileQueries queries(Index t, Index from, Index lanes) const {
    const Index first = t * lanes_ + from;
    return {b_, h_, f_.position(b_, first), std::clamp(queries_ - first, Index{0}, lanes)};
  }
  TileQueries queries(Index t) const { return queries(t, 0, lanes_); }

  /// Some keys against `count` lanes of a tile from lane `from` on. In memory of the tile these pairs are at `apart`.
  struct Pairs {
    Index tile, from, count;
    KeyRange keys;
    std::ptrdiff_t apart;
  };

  /// s: products q·k → logits, −∞ where the mask, asked `grain` keys at a time, hides a pair.
  void logits(const Pairs& of, A* s, Index grain, const PairScratch<A>& scratch) const {
    const TileQueries rows = queries(of.tile, of.from, of.count);
    const Index n = of.keys.end - of.keys.begin;
    if (A* const derivative = derivative_of(of, scratch))
      derivative_.apply(rows, s, lanes_, of.count, f_.scale, of.keys.begin, n, derivative);
    if (score_gradient_.evaluates())
      for (Index i = 0; i < n; ++i)
        std::copy_n(s + std::ptrdiff_t{i} * lanes_, of.count, scratch.dots + of.apart + std::ptrdiff_t{i} * lanes_);
    if (!scale_.dots()) f_.score.apply(rows, s, lanes_, f_.scale, of.keys.begin, of.keys.end);
    f_.mask.hide(rows, s, lanes_, of.keys, grain);
  }

  /// Whether P and dS are wanted, and weigh() computes them from states() and slope() alone: there is no dropout, no
  /// gradient of the score's or of the log-sum-exp's apart, and no ∂t/∂s.
  bool weighs_alone() const {
    return wants_ds_ && !log_sum_exp_apart_ && !score_gradient_.exists() && !derivative_.exists() &&
           !f_.dropout.exist();
  }
  BackwardRows<A> states(Index tile, Index from = 0) const {
    const std::ptrdiff_t row = std::ptrdiff_t{tile} * lanes_ + from;
    return {at_.level + row, at_.log2_sum + row, at_.delta + row};
  }
  A slope() const { return scale_.slope(); }

  /// s: logits → the weights that multiply d_out; ds: dP → dS, if that is wanted. Adds to the gradients of the score.
  void weigh(const Pairs& of, A* s, A* ds, const PairScratch<A>& scratch) const {
    const Index n = of.keys.end - of.keys.begin, row = of.tile * lanes_ + of.from;
    const A* const derivative = derivative_of(of, scratch);
    if (!wants_ds_) ds = nullptr;
    if (log_sum_exp_apart_ && wants_ds_) log_sum_exp_gradient(s, derivative, n, of.count, row, scratch);
    const BackwardRows<A> rows = states(of.tile, of.from);
    if (f_.dropout.exist())
      drop(s, ds, derivative, n, of.count, rows, of.keys.begin, row);
    else
      kernels_.weight_gradient(s, ds, derivative, n, lanes_, of.count, rows, slope());
    if (log_sum_exp_apart_ && wants_ds_)
      for (Index i = 0; i < n; ++i)
        kernels_.add_rows(scratch.own_ds + std::ptrdiff_t{i} * lanes_, of.count, ds + std::ptrdiff_t{i} * lanes_);
    if (score_gradient_.exists()) score_gradients(of, ds, scratch);
  }

 private:
  A* derivative_of(const Pairs& of, const PairScratch<A>& scratch) const {
    return derivative_.exists() && wants_dots_ && !score_gradient_.evaluates() ? scratch.derivative + of.apart
                                                                               : nullptr;
  }

  template <class E> A dot_out(Index i, const E* d_out) const {
    const T* const out = call_.row(call_.out, b_, i, h_);
    constexpr Index parts = 8, W = Vector<A, Baseline>::width;
    const Index whole = f_.value_dim / parts * parts;
    vector_t<A, Baseline> x, y, sum[std::size_t{parts / W}] = {};
    Index d = 0;
    for (; call_.out.stride[3] == 1 && d < whole; d += parts)
      for (Index j = 0; j < parts; j += W) {
        load_widened<A, Baseline>(x, d_out + d + j);
        load_widened<A, Baseline>(y, out + d + j);
        x = x * y;
        round_here(x);
        sum[j / W] = sum[j / W] + x;
      }
    A sums[parts];
    for (Index j = 0; j < parts; j += W) store(sums + j, sum[j / W]);
    for (; d < f_.value_dim; ++d) {
      A product = static_cast<A>(d_out[d]) * static_cast<A>(out[d * call_.out.stride[3]]);
      round_here(product);
      sums[d < whole ? d % parts : 0] += product;
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  bool is_empty(Index i) const {
    const std::ptrdiff_t row = f_.row_state(b_, h_, i);
    return call_.sum[row] == A(0) && call_.level[row] == -std::numeric_limits<A>::infinity();
  }

  /// What rows [first, first + count) add to the gradient of the sink.
  double sink_of(Index first, Index count) const {
    double total = 0;
    if (call_.sink == nullptr) return total;
    for (Index i = first; i < first + count; ++i) {
      if (is_empty(i)) continue;
      const double above = double(scale_.logit(at_.level[i])) - double(f_.sink[h_]);
      total -= double(at_.delta[i]) / (1 + double(call_.sum[f_.row_state(b_, h_, i)]) * std::exp(above));
    }
    return total;
  }

  /// log2 of the denominators, and what the log-sum-exp's gradient changes of delta.
  void close_states(Index first, Index count) const {
    for (Index i = first; i < first + lanes_; ++i) {
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
      if (f_.sink.size > 0) denominator = scale_.with_sink(sum, at_.level[i], static_cast<A>(f_.sink[h_]));
      at_.log2_sum[i] = std::log2(denominator);
      if (log_sum_exp_apart_) {
        at_.own_log2_sum[i] = std::log2(sum);
        at_.own_delta[i] = -call_.row_d_log_sum_exp(b_, h_, i);
      } else if (call_.d_log_sum_exp.data != nullptr && !is_empty(i)) {
        at_.delta[i] -= call_.row_d_log_sum_exp(b_, h_, i);
      }
    }
  }

  /// P and dS of n keys of `count` queries from `row` on, of a call that drops.
  MHA_NO_INLINE void drop(A* p, A* ds, const A* derivative, Index n, Index count, const BackwardRows<A>& states,
                          Index key, Index row) const {
    DroppingLanes lanes;
    lanes.set(f_, b_, h_, f_.position(b_, row), 0, count);
    kernels_.dropped_weight_gradient(p, ds, derivative, n, lanes_, count, states, scale_.slope(), key,
                                     lanes.of(f_.dropout));
  }

  /// What some pairs, with dt in ds, add to the gradients of the score's own numbers; dt ← ds.
  MHA_NO_INLINE void score_gradients(const Pairs& pairs, A* ds, const PairScratch<A>& scratch) const {
    const TileQueries of = queries(pairs.tile, pairs.from, pairs.count);
    const Index key = pairs.keys.begin, n = pairs.keys.end - key;
    if (score_gradient_.evaluates())
      score_gradient_.apply(of, scratch.dots + pairs.apart, ds, lanes_, pairs.count, f_.scale, key, n, wants_dots_,
                            slots_of(pairs.tile), scratch.tables, pairs.apart);
    for (int j = 0; j < score_gradient_.tables(); ++j) {
      const TableGradient<A, double>& table = call_.score.tables[j];
      const A* const from = score_gradient_.evaluates() ? scratch.tables[j] + pairs.apart : ds;
      for (Index i = 0; i < of.count; ++i) {
        std::ptrdiff_t at = table.at(b_, h_, of.begin + i, key);
        for (Index k = 0; k < n; ++k, at += table.stride[3]) table.add(at, from[std::ptrdiff_t{k} * lanes_ + i]);
      }
    }
  }
  double* slots_of(Index t) const { return at_.slots + std::ptrdiff_t{t} * score_gradient_.padded_slots(); }

  /// scratch.own_ds ← what n keys of `count` lanes, with logits s, add to dS through the log-sum-exp.
  void log_sum_exp_gradient(const A* s, const A* derivative, Index n, Index count, Index row,
                            const PairScratch<A>& scratch) const {
    for (Index i = 0; i < n; ++i) {
      const std::ptrdiff_t at = std::ptrdiff_t{i} * lanes_;
      std::copy_n(s + at, count, scratch.own_p + at);
      std::fill_n(scratch.own_ds + at, count, A(0));
    }
    kernels_.weight_gradient(scratch.own_p, scratch.own_ds, derivative, n, lanes_, count,
                             {at_.level + row, at_.own_log2_sum + row, at_.own_delta + row}, scale_.slope());
  }

  const AttendBackwardCall<T, AnyKv<T>, AnyMask<A>, AnyScore<A>>& call_;
  const AnyCall<T>& f_;
  const AnyScoreDerivative<A>& derivative_;
  const AnyScoreGradient<A>& score_gradient_;
  const PairKernels<A>& kernels_;
  const RowMemory<A>& at_;
  const Index lanes_, b_, h_, queries_;
  const bool wants_dots_, wants_ds_, log_sum_exp_apart_;
  const LogitScale<A> scale_;
};

/// What the backward pass of a query head of one sequence has on every machine: a base of the Head that
/// BackwardHeads asks for, its work cut by a tiling of the machine's.
template <class T, class Tiling> class BackwardHead {
  using A = Accumulator<T>;

 public:
  Index tiles() const { return tiles_; }
  Index query_pieces() const { return tiling_.query_pieces(queries_); }
  Index key_pieces() const { return Tiling::key_pieces(keys_); }
  /// What the head adds to the gradient of the sink.
  double sink() const { return pairs_.sink(tiles_); }
  /// What the head adds to the gradients of the score's slots, to where the call has them.
  void store_slots() const { pairs_.store_slots(tiles_); }

 protected:
  BackwardHead(const AnyBackwardCall<T>& call, const PairKernels<A>& kernels, const Tiling& tiling,
               const RowMemory<A>& rows, Index b, Index h)
      : call_(call.call),
        f_(call.call.forward),
        tiling_(tiling),
        pairs_(call, kernels, rows, tiling.lanes, b, h),
        b_(b),
        h_(h),
        queries_(f_.queries(b)),
        keys_(f_.keys(b)),
        tiles_(tiling.tiles(queries_)) {}

  const AttendBackwardCall<T, AnyKv<T>, AnyMask<A>, AnyScore<A>>& call_;
  const AnyCall<T>& f_;
  const Tiling& tiling_;
  const PairGradients<T> pairs_;
  const Index b_, h_, queries_, keys_, tiles_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
