// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <type_traits>

#include "../backend.hpp"
#include "../executor.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/tile_policies.hpp"

namespace mha::inline v0::detail::cpu {

/// Keys per step of the online softmax. Steps start at absolute multiples of it, so that a row's bits do not depend on
/// which other rows or keys are in the call.
inline constexpr Index key_block = 128;

/// Scratch of one worker, for one tile of queries.
template <class A> struct TileScratch {
  A *q, *s, *visible, *out, *max, *sum, *fade;

  TileScratch(Workspace::Frame& frame, Index lanes, Index head_dim, Index value_dim) {
    const auto take = [&](Index rows) {
      return frame.take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(lanes));
    };
    q = take(head_dim);
    s = take(key_block);
    visible = take(key_block);
    out = take(value_dim);
    max = take(1);
    sum = take(1);
    fade = take(1);
  }
};

/// One tile of queries of one head against all keys they see, block by block.
///
/// Formula   for each key block:  S = K Qᵀ;  masks and scores;  m′ = max(m, S);  P = exp(S − m′);
///           l ← l·exp(m − m′) + ΣP;  O ← O·exp(m − m′) + Vᵀ P.   Finally O / l.
/// Numerics  without a score and with 0 < scale ≤ 1 the softmax works on the unscaled dot products and the scale is
/// part
///           of the exponent; else logits are formed first. Differences are taken before the multiplication by log2(e),
///           so that a large finite logit stays one.
/// Source    Dao et al. 2022 (FlashAttention), algorithm 1, with queries in vector lanes
template <class T, class Source, class M, class S> class QueryTile {
  using A = Accumulator<T>;
  static constexpr A hidden = -std::numeric_limits<A>::infinity();
  static constexpr A log2e = std::numbers::log2e_v<A>;

 public:
  QueryTile(const AttendCall<T, Source, M, S>& call, const simd::TileKernels<A>& kernels, const TileScratch<A>& scratch,
            Index b, Index h, Index first)
      : call_(call),
        kernels_(kernels),
        at_(scratch),
        b_(b),
        h_(h),
        first_(first),
        count_(std::min(kernels.lanes, call.queries(b) - first)),
        keys_(call.keys(b)),
        policies_(current_isa(), call.mask, call.score, b, h, call.position(b, first), count_),
        logits_are_dots_(std::is_same_v<S, NoScore> && call.scale > A(0) && call.scale <= A(1)),
        slope_(logits_are_dots_ ? call.scale * log2e : log2e) {
    const std::ptrdiff_t lanes = kernels_.lanes;
    for (Index d = 0; d < call_.head_dim; ++d) {
      const T* const from = call_.query(b_, first_, h_) + d * call_.q.stride[3];
      for (Index i = 0; i < count_; ++i) at_.q[d * lanes + i] = static_cast<A>(from[i * call_.q.stride[1]]);
      for (Index i = count_; i < kernels_.lanes; ++i) at_.q[d * lanes + i] = A(0);
    }
  }

  void attend() {
    pass<false>();
    // 0 · NaN is NaN: a non-finite value row may have reached a query that does not see it. That always shows in the
    // result, so clean data pays one look at the output and other data a second pass that leaves hidden pairs out.
    if (!output_is_finite()) pass<true>();
    finish();
  }

  /// The softmax itself into rows (count, Lk) of `to`.
  void weights(const TensorView<A, 4>& to) {
    reset();
    for (Index i = 0; i < count_; ++i)
      for (Index k = 0; k < keys_; ++k) to(b_, h_, first_ + i, k) = A(0);
    for_each_block([&](Index begin, Index end) {
      for (Index k = begin; k < end; ++k)
        for (Index i = 0; i < count_; ++i) to(b_, h_, first_ + i, k) = s(k - begin, i);
      softmax(end - begin);
    });
    for_each_block([&](Index begin, Index end) {
      for (Index k = begin; k < end; ++k)
        for (Index i = 0; i < count_; ++i) {
          A& w = to(b_, h_, first_ + i, k);
          w = w == hidden ? A(0) : std::exp2((w - at_.max[i]) * slope_) / denominator(i);
        }
    });
  }

 private:
  A& s(Index row, Index lane) const { return at_.s[std::ptrdiff_t{row} * kernels_.lanes + lane]; }

  void reset() const {
    std::fill_n(at_.max, kernels_.lanes, hidden);
    std::fill_n(at_.sum, kernels_.lanes, A(0));
    std::fill_n(at_.out, std::ptrdiff_t{call_.value_dim} * kernels_.lanes, A(0));
  }

  template <bool Guarded> void pass() {
    reset();
    for_each_block([&](Index begin, Index end) {
      if constexpr (Guarded)
        for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{end - begin} * kernels_.lanes; ++i)
          at_.visible[i] = at_.s[i] == hidden ? A(0) : A(1);
      softmax(end - begin);
      for_each_run(begin, end, [&](const KvRun<A>& run, Index row) {
        const std::ptrdiff_t at = std::ptrdiff_t{row} * kernels_.lanes;
        (Guarded ? kernels_.guarded_values : kernels_.values)(run.value, run.value_stride, run.count, at_.s + at,
                                                              at_.visible + at, at_.fade, call_.value_dim, at_.out);
        std::fill_n(at_.fade, kernels_.lanes, A(1));  // a second run of the block continues the first
      });
    });
  }

  void softmax(Index n) const { kernels_.softmax(at_.s, n, slope_, at_.max, at_.sum, at_.fade); }

  /// f(begin, end) for every block of keys that some query of the tile may see, its logits in s, hidden ones −∞.
  template <class F> void for_each_block(F&& f) {
    for (Index begin = 0; begin < keys_; begin += key_block) {
      const simd::KeyRange keys = policies_.visible(begin, std::min(begin + key_block, keys_), kernels_.rows);
      if (keys.seen == TileVisibility::none) continue;
      logits(keys);
      f(keys.begin, keys.end);
    }
  }

  template <class F> void for_each_run(Index begin, Index end, F&& f) const {
    const Index g = call_.kv_head(h_);
    for (Index k = begin; k < end;) {
      const KvRun<A> run = call_.kv.run(b_, g, k, end);
      f(run, k - begin);
      k += run.count;
    }
  }

  void logits(const simd::KeyRange& keys) {
    const std::ptrdiff_t lanes = kernels_.lanes;
    for_each_run(keys.begin, keys.end, [&](const KvRun<A>& run, Index row) {
      kernels_.scores({run.key, run.key_stride, at_.q, lanes, at_.s + row * lanes, lanes, run.count, call_.head_dim});
    });
    if (!logits_are_dots_) policies_.score(at_.s, kernels_.lanes, call_.scale, keys.begin, keys.end);
    policies_.hide(at_.s, kernels_.lanes, keys, kernels_.rows);
  }

  bool output_is_finite() const {
    A nan(0);
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{call_.value_dim} * kernels_.lanes; ++i) nan += at_.out[i] * A(0);
    return nan == A(0);
  }

  /// What a row is divided by: the sum over its keys and, relative to the same maximum, the sink.
  A denominator(Index i) const {
    if (call_.sink.size == 0) return at_.sum[i];
    const A max = logits_are_dots_ ? at_.max[i] * call_.scale : at_.max[i];
    return at_.sum[i] + std::exp2((static_cast<A>(call_.sink[h_]) - max) * log2e);
  }

  void finish() const {
    const std::ptrdiff_t lanes = kernels_.lanes;
    for (Index i = 0; i < count_; ++i) at_.fade[i] = at_.sum[i] == A(0) ? A(0) : A(1) / denominator(i);
    for (Index d = 0; d < call_.value_dim; ++d) {
      T* const to = call_.output(b_, first_, h_) + d * call_.out.stride[3];
      for (Index i = 0; i < count_; ++i)
        to[i * call_.out.stride[1]] =
            at_.sum[i] == A(0) ? T(A(0)) : static_cast<T>(at_.out[d * lanes + i] * at_.fade[i]);
    }
    if (call_.log_sum_exp.data == nullptr) return;
    for (Index i = 0; i < count_; ++i)
      call_.row_log_sum_exp(b_, h_, first_ + i) =
          at_.sum[i] == A(0) ? hidden
                             : (logits_are_dots_ ? call_.scale * at_.max[i] : at_.max[i]) + std::log(at_.sum[i]);
  }

  const AttendCall<T, Source, M, S>& call_;
  const simd::TileKernels<A>& kernels_;
  const TileScratch<A>& at_;
  const Index b_, h_, first_, count_, keys_;
  const simd::TilePolicies<A, M, S> policies_;
  const bool logits_are_dots_;
  const A slope_;
};

/// f(tile) for every tile of queries of the call, the heaviest first, shared among the executor's workers.
template <class T, class Source, class M, class S, class Threads, class F>
void for_each_tile(const AttendCall<T, Source, M, S>& call, Workspace& workspace, const Threads& threads, F&& f) {
  using A = Accumulator<T>;
  const auto kernels = simd::tile_kernels<A>(current_isa(), call.shape.queries);
  const Index tiles = (call.shape.queries + kernels.lanes - 1) / kernels.lanes;
  const std::int64_t tasks = std::int64_t{call.shape.batch} * call.shape.heads * tiles;
  require(tasks <= std::numeric_limits<Index>::max(), "attention: ", tasks, " query tiles, the most is ",
          std::numeric_limits<Index>::max());
  if (tasks == 0) return;

  constexpr double enough_flop = 2e6;
  const double flop = 2.0 * call.shape.batch * call.shape.heads * call.shape.queries * call.shape.keys *
                      (double(call.head_dim) + call.value_dim);
  const bool parallel = flop >= enough_flop && tasks > 1;
  const Index workers = parallel ? threads.workers() : 1;
  auto frame = workspace.frame();
  TileScratch<A>* const scratch = frame.template take<TileScratch<A>>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w) scratch[w] = TileScratch<A>(frame, kernels.lanes, call.head_dim, call.value_dim);

  const auto task = [&](Index t, Index worker) {
    // Late queries of a causal mask see the most keys.
    const Index first = (tiles - 1 - t % tiles) * kernels.lanes;
    const Index h = t / tiles % call.shape.heads, b = t / tiles / call.shape.heads;
    if (first >= call.queries(b)) return;  // a short sequence of a ragged batch
    QueryTile<T, Source, M, S> query_tile(call, kernels, scratch[worker], b, h, first);
    f(query_tile);
  };
  if (parallel)
    threads.run(static_cast<Index>(tasks), task);
  else
    Serial{}.run(static_cast<Index>(tasks), task);
}

/// Keys and values in accumulator precision: 16-bit storage is widened once per call. (B, Hkv, Lk, D) in memory, of a
/// ragged batch (1, Hkv, ΣLk, D).
template <class A, class T, class Source, class M, class S>
ContiguousKv<A> widened(const AttendCall<T, Source, M, S>& call, Workspace::Frame& frame) {
  const bool ragged = call.k_offsets != nullptr;
  const Index sequences = call.shape.batch, heads = call.kv_heads;
  const Index batch = ragged ? 1 : sequences, rows = ragged ? call.k_offsets[sequences] : call.shape.keys;
  const auto take = [&](Index dim) {
    return view_bhld(frame.take<A>(static_cast<std::size_t>(batch) * static_cast<std::size_t>(heads) *
                                   static_cast<std::size_t>(rows) * static_cast<std::size_t>(dim)),
                     batch, heads, rows, dim);
  };
  const ContiguousKv<A> to{take(call.head_dim), take(call.value_dim), call.k_offsets};
  for (Index b = 0; b < sequences; ++b)
    for (Index g = 0; g < heads; ++g)
      for (Index k = 0; k < call.keys(b);) {
        const auto run = call.kv.run(b, g, k, call.keys(b));
        const KvRun<A> wide = to.run(b, g, k, k + run.count);
        A* const key = const_cast<A*>(wide.key);  // the frame's memory, taken above
        A* const value = const_cast<A*>(wide.value);
        for (Index i = 0; i < run.count; ++i) {
          for (Index d = 0; d < call.head_dim; ++d)
            key[i * wide.key_stride + d] = static_cast<A>(run.key[i * run.key_stride + d]);
          for (Index d = 0; d < call.value_dim; ++d)
            value[i * wide.value_stride + d] = static_cast<A>(run.value[i * run.value_stride + d]);
        }
        k += run.count;
      }
  return to;
}

}  // namespace mha::inline v0::detail::cpu
