// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/math.hpp"
#include "../../core/view.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "pairs.hpp"
#include "product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::eigen {

/// Rows of floats that Eigen's kernels take at once are 12, 24 or, with AVX-512, 48.
inline constexpr Index panel = Eigen::internal::packet_traits<float>::size < 16 ? 24 : 48;

/// How a call is cut into tiles of rows × keys: queries of one head fill the rows; where a head has few, the heads that
/// share keys and values join.
struct Tiling {
  Index keys;            ///< of a tile, at most
  Index asked;           ///< keys that the mask is asked about at once
  Index queries, heads;  ///< of a tile, at most; their product is its rows
  Index query_tiles, head_tiles, kv_heads, group;
  std::int64_t tiles;
  bool alone;  ///< too little work for a second thread

  /// Sizes for which no operand of a product exceeds Eigen's stack.
  template <class A> static constexpr Index fitting(Index most, Index width, Index least) {
    const auto fits = static_cast<Index>(stack_bytes / sizeof(A) / static_cast<std::size_t>(std::max(width, Index{1})));
    return std::clamp(fits / least * least, least, most);
  }

  template <class Call> explicit Tiling(const Call& call) {
    using A = Accumulator<typename Call::Scalar>;
    constexpr Index least = 24, most_rows = panel == least ? 120 : 144;
    constexpr auto most_keys = static_cast<Index>(stack_bytes / sizeof(A) / most_rows / panel) * panel;
    const Index width = std::max(call.head_dim, call.value_dim), rows = fitting<A>(most_rows, width, 8);
    keys = fitting<A>(most_keys, width, least);
    asked = std::min(panel, keys);
    keys = keys / asked * asked;
    kv_heads = call.kv_heads;
    group = call.shape.heads / kv_heads;
    queries = std::min(call.shape.queries, rows);
    heads = std::clamp<Index>(rows / std::max<Index>(queries, 1), 1, group);
    query_tiles = queries == 0 ? 0 : (call.shape.queries + queries - 1) / queries;
    head_tiles = (group + heads - 1) / heads;
    tiles = std::int64_t{call.shape.batch} * kv_heads * head_tiles * query_tiles;
    constexpr double enough_flop = 2e6;
    alone = tiles <= 1 || 2 * call.shape.pairs() * (double(call.head_dim) + call.value_dim) < enough_flop;
  }
};

/// Work memory of one thread.
template <class A> struct Scratch {
  A *query, *logits, *out, *max, *sum, *key, *value, *factors;

  template <class Frame> Scratch(Frame& frame, const Tiling& t, Index head_dim, Index value_dim) {
    const auto take = [&](Index rows, Index width) {
      return frame.template take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
    };
    const Index rows = t.queries * t.heads;
    query = take(rows, head_dim);
    logits = take(rows, t.keys);
    out = take(rows, value_dim);
    max = take(rows, 1);
    sum = take(rows, 1);
    key = take(t.keys, head_dim);
    value = take(t.keys, value_dim);
    factors = take(t.keys, 1);
  }
};

/// Attention of the rows of one tile, a row a query of a head, over all keys: a column each of
///   Qᵀ (D, rows)   Sᵀ = scale · K Qᵀ (keys, rows)   Oᵀ = Vᵀ softmax(S)ᵀ (Dv, rows)
///
/// Numerics  m ← max(m, s), l ← l·e^(m_old − m) + Σ e^(s − m), o ← o·e^(m_old − m) + Σ e^(s − m) v, by tiles of keys
/// Source    Milakov & Gimelshein 2018, algorithm 3; Dao et al. 2022, §3.1
template <class Call> class Tile {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  using Stored = typename std::remove_cvref_t<decltype(Call::kv)>::Scalar;
  static constexpr A hidden = minus_infinity<A>();

 public:
  /// Tile t, the heaviest first: late queries of a causal mask see the most keys. Of a short sequence it may be empty.
  Tile(const Call& call, const Tiling& tiling, const Scratch<A>& scratch, Index t)
      : call_(call), tiling_(tiling), scratch_(scratch) {
    first_ = (tiling.query_tiles - 1 - t % tiling.query_tiles) * tiling.queries;
    const Index in_group = t / tiling.query_tiles % tiling.head_tiles * tiling.heads;
    const Index rest = t / tiling.query_tiles / tiling.head_tiles;
    b_ = rest / tiling.kv_heads;
    g_ = rest % tiling.kv_heads;
    head_ = g_ * tiling.group + in_group;
    heads_ = std::min(tiling.heads, tiling.group - in_group);
    count_ = std::clamp<Index>(call.queries(b_) - first_, 0, tiling.queries);
    rows_ = heads_ * count_;
  }

  void attend() {
    if (rows_ == 0) return;
    for (Index r = 0; r < rows_; ++r)
      for (Index d = 0; d < call_.head_dim; ++d)
        scratch_.query[std::ptrdiff_t{r} * call_.head_dim + d] =
            static_cast<A>(call_.query(b_, query_of(r), head_of(r))[d * call_.q.stride[3]]);
    out().setZero();
    std::fill_n(scratch_.max, rows_, hidden);
    std::fill_n(scratch_.sum, rows_, A(0));
    const Index keys = call_.keys(b_);
    for (Index begin = 0; begin < keys && (begin = call_.held(b_, begin)) < keys;) {
      Index end = begin;
      while (end < keys && end - begin < tiling_.keys && visible(end)) end = std::min(end + tiling_.asked, keys);
      if (end == begin)
        begin = std::min(begin + tiling_.asked, keys);
      else
        begin += add_keys(begin, end);
    }
    finish();
  }

 private:
  Index head_of(Index r) const { return head_ + r / count_; }
  Index query_of(Index r) const { return first_ + r % count_; }
  Map<A> out() const { return {scratch_.out, call_.value_dim, rows_, Eigen::OuterStride<>(call_.value_dim)}; }
  HeadRows<Call> rows_of(Index h) const { return {call_, b_, h, first_, count_}; }
  Array<A> logits(Index r, Index keys) const { return {scratch_.logits + std::ptrdiff_t{r} * tiling_.keys, keys}; }

  /// Whether a row may see a key of the block that starts at k.
  bool visible(Index k) const {
    const Index end = std::min(k + tiling_.asked, call_.keys(b_));
    for (Index h = head_; h < head_ + heads_; ++h)
      if (rows_of(h).seen(k, end) != TileVisibility::none) return true;
    return false;
  }

  /// Lets keys [begin, end) enter, as far as they lie at one stride; returns how many.
  Index add_keys(Index begin, Index end) {
    const KvRun<Stored> run = call_.kv.run(b_, g_, begin, end);
    const Index n = run.count;
    const Rows<A> key =
        read_rows<A>(TensorView<const Stored, 2>{run.key, {n, call_.head_dim}, {run.key_stride, 1}}, scratch_.key);
    Map<A> s(scratch_.logits, n, rows_, Eigen::OuterStride<>(tiling_.keys));
    std::fill_n(scratch_.logits, std::ptrdiff_t{rows_} * tiling_.keys, A(0));
    add_product<A>(call_.scale, {key.data, n, call_.head_dim, key.outer()},
                   {scratch_.query, call_.head_dim, rows_, Eigen::OuterStride<>(call_.head_dim)}, s);
    for (Index h = head_; h < head_ + heads_; ++h)
      rows_of(h).score_and_mask(logits((h - head_) * count_, n).data(), tiling_.keys, begin, begin + n, tiling_.asked);
    Rows<A> value = read_rows<A>(TensorView<const Stored, 2>{run.value, {n, call_.value_dim}, {run.value_stride, 1}},
                                 scratch_.value);
    const ConstMap<A> v(value.data, call_.value_dim, n, value.outer());  // Vᵀ
    const bool finite = (v.array() - v.array()).sum() == A(0);
    for (Index r = 0; r < rows_; ++r) {
      raise_maximum(r, n);
      if (finite) weigh(r, begin, n);  // while its logits are in the nearest cache
    }
    if (!finite) {
      value = finite_part(v, begin);  // what it adds is of the new maximum
      for (Index r = 0; r < rows_; ++r) weigh(r, begin, n);
    }
    add_product<A>({value.data, call_.value_dim, n, value.outer()},
                   {scratch_.logits, n, rows_, Eigen::OuterStride<>(tiling_.keys)}, out());
    return n;
  }

  /// The values of keys from `begin` on, those that are not finite replaced by 0 once the rows that see them have them:
  /// 0 · NaN is NaN, and a weight of 0 must hide it.
  Rows<A> finite_part(const ConstMap<A>& v, Index begin) {
    const auto n = static_cast<Index>(v.cols()), width = call_.value_dim;
    for (Index k = 0; k < n; ++k)
      for (Index d = 0; d < width; ++d) {
        const A x = v(d, k);
        const bool finite = x - x == A(0);
        for (Index r = 0; !finite && r < rows_; ++r)
          if (logits(r, n)[k] != hidden)
            out()(d, r) +=
                x * A(call_.dropout.exist() ? call_.dropout_factor(b_, head_of(r), query_of(r), begin + k) : 1.);
        scratch_.value[std::ptrdiff_t{k} * width + d] = finite ? x : A(0);
      }
    return {scratch_.value, width};
  }

  /// What row r has summed is rescaled to the maximum m of its logits so far; NaN is left to its weights.
  void raise_maximum(Index r, Index n) {
    using mha::exp;
    const A m = logits(r, n).maxCoeff(), old = scratch_.max[r];
    if (!(m > old)) return;
    const A rescale = exp(static_cast<A>(old - m));
    scratch_.sum[r] *= rescale;
    out().col(r) *= rescale;
    scratch_.max[r] = m;
  }

  /// Row r's logits of n keys from `begin` on become its weights, and those that are dropped 0.
  void weigh(Index r, Index begin, Index n) {
    Array<A> s = logits(r, n);
    eigen::weigh(s, scratch_.max[r]);
    scratch_.sum[r] += s.sum();
    if (!call_.dropout.exist()) return;
    rows_of(head_of(r)).dropout_factors(r % count_, begin, n, scratch_.factors);
    s *= Array<A>(scratch_.factors, n);
  }

  /// o / (l + e^(sink − m)), m + log l, and m and l themselves.
  void finish() {
    using mha::exp;
    using mha::log;
    for (Index r = 0; r < rows_; ++r) {
      const Index h = head_of(r), i = query_of(r);
      const A m = scratch_.max[r], sum = scratch_.sum[r];
      const bool empty = m == hidden && sum == A(0);  // else NaN is among its weights
      const A denominator = call_.sink.size == 0 ? sum : sum + exp(static_cast<A>(A(call_.sink[h]) - m));
      T* const to = call_.output(b_, i, h);
      const A* const o = scratch_.out + std::ptrdiff_t{r} * call_.value_dim;
      for (Index d = 0; d < call_.value_dim; ++d)
        to[d * call_.out.stride[3]] = static_cast<T>(empty ? A(0) : o[d] / denominator);
      if (call_.log_sum_exp.data != nullptr)
        call_.row_log_sum_exp(b_, h, i) = empty ? hidden : static_cast<A>(m + log(sum));
      if (call_.states.level != nullptr) {
        const std::ptrdiff_t state = call_.row_state(b_, h, i);
        call_.states.level[state] = m;
        call_.states.sum[state] = sum;
      }
    }
  }

  const Call& call_;
  const Tiling& tiling_;
  const Scratch<A>& scratch_;
  Index b_, g_, head_, heads_, first_, count_, rows_;
};

/// Attention, tiles shared among the threads; a tile's sums are of one thread.
template <class Call, class Threads> void attend(const Call& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<typename Call::Scalar>;
  const Tiling tiling(call);
  require(tiling.tiles <= std::numeric_limits<Index>::max(), "attention: ", tiling.tiles, " query tiles, the limit is ",
          std::numeric_limits<Index>::max());
  const Index workers = tiling.alone ? 1 : threads.workers();
  auto frame = workspace.frame();
  Scratch<A>* const scratch = frame.template take<Scratch<A>>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w) scratch[w] = Scratch<A>(frame, tiling, call.head_dim, call.value_dim);
  run_tasks(tiling.alone, threads, static_cast<Index>(tiling.tiles),
            [&](Index t, Index worker) { Tile<Call>(call, tiling, scratch[worker], t).attend(); });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::eigen
