// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/view.hpp"
#include "../backend.hpp"
#include "../simd/dropout.hpp"
#include "../simd/few_rows.hpp"
#include "../simd/logit_scale.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/tile_lanes.hpp"
#include "../simd/tile_policies.hpp"
#include "tile_keys.hpp"
#include "tile_layout.hpp"
#include "tile_requests.hpp"
#include "tile_scratch.hpp"
#include "tile_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

using simd::any_call;
using simd::AnyCall;

/// The kernels of few rows that a tile of so many runs on; rows = 0 where it runs with queries in lanes. What kernels
/// of few rows sum they multiply by, so that they cannot drop weights.
template <class A, class Stored>
simd::FewRowsKernels<A, Stored> few_rows_of(IsaLevel level, Index rows, Index head_dim, Index value_dim, bool drops) {
  if (drops) return {};
  return simd::few_rows_kernels<A, Stored>(level, rows, head_dim, value_dim);
}

/// One tile of query rows against all keys they see, block by block.
///
/// Formula   for each key block:  S = K Qᵀ;  masks and scores;  m′ = max(m, S);  P = exp(S − m′);
///           l ← l·exp(m − m′) + ΣP;  O ← O·exp(m − m′) + Vᵀ P.   Finally O / l.
/// Numerics  S has dot products or logits, as simd::LogitScale says
/// Source    Dao et al. 2022 (FlashAttention), algorithm 1, with queries in vector lanes
template <class T, class Stored = T> class QueryTile {
  using A = Accumulator<T>;
  static constexpr bool widens = !std::is_same_v<Stored, A>;
  static constexpr A hidden = -std::numeric_limits<A>::infinity();

 public:
  QueryTile(const AnyCall<T, Stored>& call, IsaLevel level, const TileScratch<A>& scratch, const simd::TileLanes& rows)
      : call_(call),
        level_(level),
        kernels_(simd::tile_kernels<A>(level, rows.count())),
        few_(few_rows_of<A, Stored>(level, rows.count(), call.head_dim, call.value_dim, call.dropout.exist())),
        at_(scratch),
        rows_(rows),
        keys_(call, rows, kernels_.rows),
        layout_{call, level, rows, kernels_.lanes, kernels_.width},
        scale_(call),
        requests_(call, forgets_requests() ? Asking::of_own : Asking::of_other) {
    if (few_.rows > 0)
      layout_.pack_rows(few_.rows, at_.row_q);
    else
      layout_.pack_lanes(at_.q);
  }

  const simd::TileLanes& rows() const { return rows_; }
  /// Of the kernels of few rows that it runs on, 0 where queries lie in lanes.
  Index few_rows() const { return few_.rows; }

  /// The whole tile.
  void attend() {
    const auto held_from = [&](Index chunk) { return simd::chunk_of(keys_.from(simd::chunk_begin(chunk), 1)); };
    bool begun = false;
    for (Index chunk = held_from(0); simd::chunk_begin(chunk) < keys_.count(); chunk = held_from(chunk + 1)) {
      const simd::KeyRange keys = seen(chunk);
      if (keys.seen == TileVisibility::none) continue;
      attend_keys(keys, begun ? at_.part : at_.total);
      if (begun) merge(at_.total, at_.part);
      begun = true;
    }
    if (!begun) reset(at_.total);
    finish(at_.total);
  }

  /// The state of the rows over one chunk of keys.
  void attend_chunk(Index chunk, const simd::TileState<A>& to) {
    const simd::KeyRange keys = seen(chunk);
    if (keys.seen == TileVisibility::none) return reset(to);
    attend_keys(keys, to);
  }

  void merge(const simd::TileState<A>& total, const simd::TileState<A>& part) const {
    if (few_.rows > 0)
      few_.merge(total, part, scale_.slope(), call_.value_dim, few_.rows);
    else
      kernels_.merge(total, part, scale_.slope(), call_.value_dim, kernels_.lanes);
  }

  /// From the state over all keys to outputs and log-sum-exps.
  void finish(const simd::TileState<A>& state) const {
    for (Index lane = 0; lane < rows_.count(); ++lane)
      at_.rescale[lane] = state.sum[lane] == A(0) ? A(0) : A(1) / denominator(state, lane);
    if (few_.rows > 0)
      layout_.store_rows(state, at_.rescale);
    else
      layout_.store_lanes(state, at_.rescale);
    if (call_.states.level != nullptr)
      rows_.for_each([&](Index h, Index i, Index lane) {
        const std::ptrdiff_t row = call_.row_state(rows_.b, h, i);
        call_.states.level[row] = state.max[lane];
        call_.states.sum[row] = state.sum[lane];
      });
    if (call_.log_sum_exp.data == nullptr) return;
    rows_.for_each([&](Index h, Index i, Index lane) {
      call_.row_log_sum_exp(rows_.b, h, i) =
          state.sum[lane] == A(0) ? hidden : scale_.logit(state.max[lane]) + std::log(state.sum[lane]);
    });
  }

  /// The softmax itself into rows (count, Lk) of `to`.
  void weights(const TensorView<A, 4>& to) {
    const simd::TileState<A>& state = at_.total;
    if (few_.rows > 0) layout_.pack_lanes(at_.q);
    reset(state);
    rows_.for_each([&](Index h, Index i, Index) {
      for (Index k = 0; k < keys_.count(); ++k) to(rows_.b, h, i, k) = hidden;
    });
    for_each_block(0, keys_.count(), false, [&](const KeySegments& segments, Index n) {
      rows_.for_each([&](Index h, Index i, Index lane) {
        for_each_key(segments, [&](Index k, Index row) { to(rows_.b, h, i, k) = s(row)[lane]; });
      });
      softmax(n, state);
    });
    rows_.for_each([&](Index h, Index i, Index lane) {
      for (Index k = 0; k < keys_.count(); ++k) {
        A& w = to(rows_.b, h, i, k);
        w = w == hidden ? A(0) : std::exp2((w - state.max[lane]) * scale_.slope()) / denominator(state, lane);
      }
    });
  }

 private:
  A* s(Index row) const { return at_.s + std::ptrdiff_t{row} * kernels_.lanes; }

  /// The keys of a chunk that some row may see.
  simd::KeyRange seen(Index chunk) const {
    return keys_.seen(simd::chunk_begin(chunk), simd::chunk_end(chunk, keys_.count()));
  }

  /// The state of the rows over keys of one chunk, from the first of a block on.
  void attend_keys(const simd::KeyRange& keys, const simd::TileState<A>& to) {
    pass(keys, to, false);
    // 0 · NaN is NaN: a non-finite value row may have reached a query that does not see it. That always shows in the
    // result, so clean data pays one look at the output and other data a second pass that leaves hidden pairs out.
    if (!is_finite(to)) guarded_pass(keys, to);
  }

  void reset(const simd::TileState<A>& state) const {
    std::fill_n(state.max, kernels_.lanes, hidden);
    std::fill_n(state.sum, kernels_.lanes, A(0));
    std::fill_n(state.out, std::ptrdiff_t{call_.value_dim} * kernels_.lanes, A(0));
  }

  /// With queries in lanes, whatever the tile.
  void guarded_pass(const simd::KeyRange& keys, const simd::TileState<A>& to) {
    if (few_.rows == 0) return pass(keys, to, true);
    layout_.pack_lanes(at_.q);
    pass(keys, {to.max, to.sum, at_.lane_out}, true);
    for (Index lane = 0; lane < few_.rows; ++lane)
      for (Index d = 0; d < call_.value_dim; ++d)
        to.out[std::ptrdiff_t{lane} * call_.value_dim + d] = at_.lane_out[std::ptrdiff_t{d} * kernels_.lanes + lane];
  }

  void pass(const simd::KeyRange& range, const simd::TileState<A>& to, bool guarded) {
    reset(to);
    const bool by_rows = !guarded && few_.rows > 0;
    for_each_block(range.begin, range.end, by_rows, [&](const KeySegments& segments, Index n) {
      if (guarded)
        for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{n} * kernels_.lanes; ++i)
          at_.visible[i] = at_.s[i] == hidden ? A(0) : A(1);
      if (by_rows) return row_values(segments, n, to);
      softmax(n, to);
      if (call_.dropout.exist()) drop(segments);
      Index row = 0;
      for (const simd::KeyRange& keys : segments) {
        const bool last = row + keys.end - keys.begin == n;
        keys_.for_each_run(keys.begin, keys.end, [&](const KvRun<Stored>& run, Index at) {
          // Of what comes after the block as much as this run has, and at its end the rest.
          const Index most = keys.begin + at + run.count < keys.end ? run.count : key_block;
          values(run, row, to, last ? keys_.next(keys.end + at, most) : simd::NextRows<Stored>{}, guarded);
          std::fill_n(at_.rescale, kernels_.lanes, A(1));  // a second run of the block continues the first
          row += run.count;
        });
      }
    });
  }

  /// The softmax of a block and its values, all runs at once.
  void row_values(const KeySegments& segments, Index n, const simd::TileState<A>& to) {
    few_.softmax(at_.s, key_block, few_.rows, n, scale_.slope(), to.max, at_.rescale);
    few_.values(runs_.values(0, runs_.size()), at_.s, key_block, at_.rescale, call_.value_dim, to.out, to.sum,
                requests_.in_values(keys_, segments.begin()->begin, segments.back().end));
  }

  void softmax(Index n, const simd::TileState<A>& state) const {
    kernels_.softmax(at_.s, n, scale_.slope(), state.max, state.sum, at_.rescale);
  }

  /// The weights of a block in s, those that are dropped made 0 and the others multiplied.
  MHA_NO_INLINE void drop(const KeySegments& segments) const {
    simd::DroppingLanes lanes;
    rows_.set_draws(call_, lanes);
    Index first = 0;
    for (const simd::KeyRange& keys : segments) {
      const Index n = keys.end - keys.begin;
      simd::drop_kernel<A>(level_)(s(first), kernels_.lanes, n, kernels_.lanes, keys.begin, lanes.of(call_.dropout));
      first += n;
    }
  }

  void values(const KvRun<Stored>& run, Index row, const simd::TileState<A>& to, const simd::NextRows<Stored>& next,
              bool guarded) const {
    const auto [value, stride] = widened(run.value, run.value_stride, run.count, call_.value_dim, at_.wide_values);
    const std::ptrdiff_t at = std::ptrdiff_t{row} * kernels_.lanes;
    if (guarded)
      kernels_.guarded_values(value, stride, run.count, at_.s + at, at_.visible + at, at_.rescale, call_.value_dim,
                              to.out, kernels_.lanes);
    else
      kernels_.values(value, stride, run.count, at_.s + at, at_.rescale, call_.value_dim, to.out, far(next));
  }

  /// f(segments, n) for every block of keys [first, last) that some query may see: the logits of its n keys, segment
  /// after segment, are in s (n, lanes), or by_rows in s (lanes, key_block); hidden ones are −∞.
  template <class F> void for_each_block(Index first, Index last, bool by_rows, F&& f) {
    for (Index begin = keys_.from(first, key_block); begin < last; begin = keys_.from(begin + key_block, key_block)) {
      const KeySegments segments = keys_.segments(begin, std::min(begin + key_block, last));
      Index rows = 0;
      runs_.clear();
      for (const simd::KeyRange& keys : segments) {
        logits(keys, rows, by_rows);
        rows += keys.end - keys.begin;
      }
      if (rows > 0) f(segments, rows);
    }
  }

  /// The rows that a wide tile prefetches, none if all keys and values stay in a core's second-level cache. Rows that
  /// are widened later are described as rows of A with as many bytes.
  simd::NextRows<A> far(const simd::NextRows<Stored>& next) const {
    constexpr std::int64_t near = 512 << 10;  // bytes
    constexpr int narrow = sizeof(A) / sizeof(Stored);
    if (std::int64_t{keys_.count()} * (call_.head_dim + call_.value_dim) * std::int64_t{sizeof(Stored)} <= near)
      return {};
    return {reinterpret_cast<const A*>(next.data), next.stride / narrow, next.dim / narrow, next.count};
  }

  struct WideRows {
    const A* data;
    std::ptrdiff_t stride;
  };
  /// Rows in accumulator precision, in `scratch` if they are not stored so.
  WideRows widened(const Stored* rows, std::ptrdiff_t stride, Index n, Index dim, A* scratch) const {
    if constexpr (widens) {
      simd::widen(level_, rows, stride, n, dim, scratch);
      return {scratch, dim};
    } else {
      return {rows, stride};
    }
  }

  /// The logits of `keys` into s from its key `first` on.
  void logits(const simd::KeyRange& keys, Index first, bool by_rows) {
    if (by_rows)
      row_scores(keys, at_.s + first);
    else
      keys_.for_each_run(keys.begin, keys.end, [&](const KvRun<Stored>& run, Index key) {
        tile_scores(run, s(first + key), far({run.value, run.value_stride, call_.value_dim, run.count}));
      });
    const Index key_stride = by_rows ? 1 : kernels_.lanes, row_stride = by_rows ? key_block : 1;
    A* const columns = at_.s + std::ptrdiff_t{first} * key_stride;
    if (!scale_.dots()) rows_.apply(call_.score, columns, key_stride, call_.scale, keys.begin, keys.end, row_stride);
    rows_.hide(call_.mask, columns, key_stride, keys, kernels_.rows, row_stride);
  }

  /// The dot products of `keys`, whose runs join those of the block, as columns of the tile's rows.
  void row_scores(const simd::KeyRange& keys, A* to) {
    const Index lanes = kernels_.lanes, dim = call_.head_dim, begin = runs_.size();
    keys_.for_each_run(keys.begin, keys.end, [&](const KvRun<Stored>& run, Index) { runs_.add(run); });
    for (Index first = begin, last = begin, key = keys.begin; first < runs_.size(); first = last) {
      Index n = 0, rest = 0;  // runs of one stride, up to and with one that does not fill its last register
      while (last < runs_.size() && rest == 0 && runs_.key(last).stride == runs_.key(first).stride) {
        n += runs_.count(last);
        rest = runs_.count(last++) % lanes;
      }
      few_.scores(runs_.keys(first, last), at_.row_q, dim, to, key_block,
                  requests_.in_scores(keys_, key, runs_.values(first, last)));
      if (rest > 0) last_scores(runs_.key(last - 1), rest, to + n - rest);
      to += n;
      key += n;
    }
  }

  /// Those of a run's last keys, filled up to a register: nothing behind them is read, nor written.
  void last_scores(const simd::StoredRows<Stored>& run, Index rest, A* to) const {
    const Index lanes = kernels_.lanes, dim = call_.head_dim;
    simd::widen(level_, run.data + (run.count - rest) * run.stride, run.stride, rest, dim, at_.wide_keys);
    std::fill_n(at_.wide_keys + std::ptrdiff_t{rest} * dim, std::ptrdiff_t{lanes - rest} * dim, A(0));
    const simd::StoredRows<A> filled{at_.wide_keys, dim, lanes};
    few_.wide_scores({&filled, 1}, at_.row_q, dim, at_.visible, lanes, {});
    for (Index lane = 0; lane < rows_.count(); ++lane)
      std::copy_n(at_.visible + std::ptrdiff_t{lane} * lanes, rest, to + std::ptrdiff_t{lane} * key_block);
  }

  /// The same as rows of keys, with queries in lanes.
  void tile_scores(const KvRun<Stored>& run, A* to, const simd::NextRows<A>& next) const {
    const std::ptrdiff_t lanes = kernels_.lanes;
    const auto [key, stride] = widened(run.key, run.key_stride, run.count, call_.head_dim, at_.wide_keys);
    kernels_.scores({key, stride, at_.q, lanes, to, lanes, run.count, call_.head_dim, false, next});
  }

  bool is_finite(const simd::TileState<A>& state) const {
    const Index rows = few_.rows > 0 ? rows_.count() : kernels_.lanes;
    kernels_.non_finite(state.out, std::ptrdiff_t{call_.value_dim} * rows, at_.rescale);
    return std::all_of(at_.rescale, at_.rescale + kernels_.width, [](A x) { return x == A(0); });
  }

  /// What a row is divided by: the sum over its keys and, relative to the same maximum, the sink.
  A denominator(const simd::TileState<A>& state, Index lane) const {
    if (call_.sink.size == 0) return state.sum[lane];
    return scale_.with_sink(state.sum[lane], state.max[lane], static_cast<A>(call_.sink[rows_.head_of(lane)]));
  }

  const AnyCall<T, Stored>& call_;
  const IsaLevel level_;
  const simd::TileKernels<A> kernels_;
  const simd::FewRowsKernels<A, Stored> few_;
  const TileScratch<A>& at_;
  const simd::TileLanes rows_;
  const TileKeys<AnyCall<T, Stored>> keys_;
  const TileLayout<AnyCall<T, Stored>> layout_;
  const simd::LogitScale<A> scale_;
  KeyRuns<Stored> runs_;  ///< of a block by rows
  TileRequests<AnyCall<T, Stored>> requests_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
