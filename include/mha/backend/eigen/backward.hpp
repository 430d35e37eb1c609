// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "../../core/dual.hpp"
#include "../../core/math.hpp"
#include "../../core/view.hpp"
#include "../../core/workspace.hpp"
#include "../../policy/score_gradient.hpp"
#include "../backward.hpp"
#include "../backward_plan.hpp"
#include "../pair_score_gradient.hpp"
#include "attend.hpp"
#include "pairs.hpp"
#include "product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::eigen {

/// How a head is cut: a piece of queries is one tile, pieces of keys are as long as forward's.
struct BackwardTiling {
  Index rows;   ///< queries of a tile, at most
  Index keys;   ///< of a piece, at most
  Index asked;  ///< keys that the mask is asked about at once

  Index tiles(Index queries) const { return blocks_of(queries, rows); }
  Index query_pieces(Index queries) const { return tiles(queries); }
  Index key_pieces(Index all) const { return blocks_of(all, keys); }
};

/// What one query head keeps, a row for each query or key of the longest sequence.
template <class A> struct HeadMemory {
  A *d_query, *d_key, *d_value;  ///< sums, without the scale
  A *weight, *delta;             ///< of a row: 1 / denominator, and what is taken from each of its dP
  LongSum<A>*sink, *slots;       ///< of a tile: what it adds to the gradients of the sink and of the score's slots

  template <class Call> HeadMemory(Workspace::Frame& frame, const BackwardTiling& tiling, const Call& call) {
    const auto take = [&]<class N>(N*& to, Index rows, Index width) {
      to = frame.take<N>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
    };
    const auto& f = call.forward;
    take(d_query, f.shape.queries, f.head_dim);
    take(d_key, f.shape.keys, f.head_dim);
    take(d_value, f.shape.keys, f.value_dim);
    take(weight, f.shape.queries, 1);
    take(delta, f.shape.queries, 1);
    take(sink, tiling.tiles(f.shape.queries), 1);
    take(slots, tiling.tiles(f.shape.queries), call.score.count);
  }
};

/// Work memory of one thread.
template <class A> struct BackwardScratch {
  A *query, *d_out, *key, *value;  ///< copies of operands that Eigen cannot read where they lie
  A *weights, *d_logits;           ///< Pᵀ and dSᵀ (keys, rows)
  A* dots;                         ///< the logits before their score
  A *logits, *factors;             ///< of one row

  template <class Call> BackwardScratch(Workspace::Frame& frame, const BackwardTiling& t, const Call& f) {
    const auto take = [&](Index rows, Index width) {
      return frame.template take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
    };
    query = take(t.rows, f.head_dim);
    d_out = take(t.rows, f.value_dim);
    key = take(t.keys, f.head_dim);
    value = take(t.keys, f.value_dim);
    weights = take(t.rows, t.keys);
    d_logits = take(t.rows, t.keys);
    dots = has_score<Call> ? take(t.rows, t.keys) : nullptr;
    logits = take(t.keys, 1);
    factors = take(t.keys, 1);
  }
};

/// The backward pass of one query head of one sequence in steps, as BackwardHeads wants them.
///
/// Formula   Sᵀ = scale · K Qᵀ,  dPᵀ = V dOᵀ,  P = e^(score(S) − m) / l,  dS = P ∘ (dP − D) ∘ ∂t/∂s,
///           dQᵀ += Kᵀ dSᵀ,  dVᵀ += dOᵀ P,  dKᵀ += Qᵀ dS;  the scale is multiplied in at the end
/// Numerics  m and l are forward's; a hidden pair adds exactly nothing
/// Source    Dao et al. 2022 (FlashAttention), algorithm 4
template <class Call> class HeadBackward {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  using Forward = std::remove_cvref_t<decltype(Call::forward)>;
  using Wanted = typename Call::WantedGradients;
  using Score = decltype(at_head(std::declval<const Forward&>().score, Index{}, Index{}));
  static constexpr bool has_score_gradients =
      Slots<Wanted, Score>::count() + Tables<Wanted, Score>::count() + Accumulating<Wanted, Score>::count() > 0;
  static constexpr A hidden = minus_infinity<A>();

 public:
  HeadBackward(const Call& call, const BackwardTiling& tiling, const HeadMemory<A>& memory, Index b, Index h)
      : call_(call), f_(call.forward), tiling_(tiling), at_(memory), b_(b), h_(h) {}

  Index tiles() const { return tiling_.tiles(f_.queries(b_)); }
  Index query_pieces() const { return tiles(); }
  Index key_pieces() const { return tiling_.key_pieces(f_.keys(b_)); }

  /// Clears the sums of tile t and closes the states of its rows: with u = 1 / denominator, dS is
  /// e^(t − m) (u dP − delta), delta = u D − d_log_sum_exp / l.
  void prepare_queries(Index t) const {
    using mha::exp;
    const Index first = t * tiling_.rows, end = std::min(first + tiling_.rows, f_.queries(b_));
    std::fill_n(row(at_.d_query, first, f_.head_dim), std::ptrdiff_t{end - first} * f_.head_dim, A(0));
    std::fill_n(slots_of(t), call_.score.count, LongSum<A>(0));
    LongSum<A> sink(0);
    for (Index i = first; i < end; ++i) {
      const std::ptrdiff_t state = f_.row_state(b_, h_, i);
      const A m = call_.level[state], l = call_.sum[state];
      at_.weight[i] = at_.delta[i] = A(0);
      if (m == hidden && l == A(0)) continue;  // it saw nothing
      const T *const out = call_.row(call_.out, b_, i, h_), *const d_out = call_.row(call_.d_out, b_, i, h_);
      A dot(0);
      for (Index d = 0; d < f_.value_dim; ++d)
        dot += static_cast<A>(d_out[d * call_.d_out.stride[3]]) * static_cast<A>(out[d * call_.out.stride[3]]);
      A denominator = l;
      if (f_.sink.size > 0) {
        const A logit = A(f_.sink[h_]);
        denominator += exp(static_cast<A>(logit - m));
        sink -= LongSum<A>(dot / (A(1) + l * exp(static_cast<A>(m - logit))));
      }
      at_.weight[i] = A(1) / denominator;
      at_.delta[i] = dot / denominator - call_.row_d_log_sum_exp(b_, h_, i) / l;
    }
    at_.sink[t] = sink;
  }

  /// Clears the sums of piece m of the keys.
  void prepare_keys(Index m) const {
    const Index first = m * tiling_.keys, n = keys_of(m);
    std::fill_n(row(at_.d_key, first, f_.head_dim), std::ptrdiff_t{n} * f_.head_dim, A(0));
    std::fill_n(row(at_.d_value, first, f_.value_dim), std::ptrdiff_t{n} * f_.value_dim, A(0));
  }

  /// Pieces [n, n_end) of the queries against pieces [m, m_end) of the keys.
  void pieces(Index n, Index n_end, Index m, Index m_end, const BackwardScratch<A>& scratch) const {
    for (; m < m_end; ++m)
      for (Index t = n; t < n_end; ++t) piece(t, m, scratch);
  }

  /// dQ of tile t into its destination.
  void store_queries(Index t) const {
    const Index first = t * tiling_.rows, end = std::min(first + tiling_.rows, f_.queries(b_));
    for (Index i = first; call_.query.wanted() && i < end; ++i) {
      A* const x = row(at_.d_query, i, f_.head_dim);
      for (Index d = 0; d < f_.head_dim; ++d) x[d] *= f_.scale;
      call_.query.put_row(call_.query_row(b_, i, h_), x, f_.head_dim);
    }
  }

  /// The sums over piece m of the keys += those of another head that reads them.
  void add_keys(Index m, const HeadMemory<A>& other) const {
    const auto add = [&](A* to, const A* from, Index width) {
      const std::ptrdiff_t begin = std::ptrdiff_t{m} * tiling_.keys * width,
                           end = begin + keys_of(m) * std::ptrdiff_t{width};
      for (std::ptrdiff_t i = begin; i < end; ++i) to[i] += from[i];
    };
    add(at_.d_key, other.d_key, f_.head_dim);
    add(at_.d_value, other.d_value, f_.value_dim);
  }

  /// dK and dV of piece m of the keys into their destinations.
  void store_keys(Index m) const {
    const auto store = [&](const GradientTo<T>& to, A* from, Index width, A scale) {
      for (Index k = m * tiling_.keys; to.wanted() && k < m * tiling_.keys + keys_of(m); ++k) {
        A* const x = row(from, k, width);
        for (Index d = 0; d < width; ++d) x[d] *= scale;
        to.put_row(call_.key_row(to, b_, k, f_.kv_head(h_)), x, width);
      }
    };
    store(call_.key, at_.d_key, f_.head_dim, f_.scale);
    store(call_.value, at_.d_value, f_.value_dim, A(1));
  }

  /// What the head adds to the gradient of the sink.
  LongSum<A> sink() const {
    LongSum<A> sum(0);
    for (Index t = 0; t < tiles(); ++t) sum += at_.sink[t];
    return sum;
  }
  /// What it adds to the gradients of the score's slots, to where the call has them.
  void store_slots() const {
    const std::ptrdiff_t count = call_.score.count;
    for (Index t = 0; t < tiles(); ++t)
      for (std::ptrdiff_t j = 0; j < count; ++j)
        call_.score.slots[(std::ptrdiff_t{b_} * f_.shape.heads + h_) * count + j] += slots_of(t)[j];
  }

 private:
  static A* row(A* all, Index first, Index width) { return all + std::ptrdiff_t{first} * width; }
  LongSum<A>* slots_of(Index t) const { return at_.slots + std::ptrdiff_t{t} * call_.score.count; }
  Index keys_of(Index m) const { return std::min(tiling_.keys, f_.keys(b_) - m * tiling_.keys); }
  static constexpr bool is_finite(const auto& x) { return (x.array() - x.array()).sum() == A(0); }

  /// A column each of `count` rows of a tensor of heads.
  ConstMap<A> columns(const T* first, const TensorView<const T, 4>& of, Index count, Index width, A* copy) const {
    const Rows<A> rows =
        read_rows<A>(TensorView<const T, 2>{first, {count, width}, {of.stride[1], of.stride[3]}}, copy);
    return {rows.data, width, count, rows.outer()};
  }

  /// Tile t against what it sees of piece m of the keys.
  void piece(Index t, Index m, const BackwardScratch<A>& scratch) const {
    const Index first = t * tiling_.rows, count = std::min(tiling_.rows, f_.queries(b_) - first);
    const HeadRows<Forward> rows{f_, b_, h_, first, count};
    Index begin = m * tiling_.keys, end = begin + keys_of(m);
    const auto sees = [&](Index k, Index k_end) { return rows.seen(k, k_end) != TileVisibility::none; };
    while (begin < end && !sees(begin, std::min(begin + tiling_.asked, end)))
      begin = std::min(begin + tiling_.asked, end);
    while (begin < end && !sees(std::max(end - tiling_.asked, begin), end)) end = std::max(end - tiling_.asked, begin);
    if (begin == end) return;
    const ConstMap<A> q = columns(f_.query(b_, first, h_), f_.q, count, f_.head_dim, scratch.query);
    const ConstMap<A> d_out =
        columns(call_.row(call_.d_out, b_, first, h_), call_.d_out, count, f_.value_dim, scratch.d_out);
    while (begin < end) begin += add_keys(rows, q, d_out, begin, end, scratch);
  }

  /// Keys [begin, end) of a piece, as far as they lie at one stride; returns how many.
  Index add_keys(const HeadRows<Forward>& rows, const ConstMap<A>& q, const ConstMap<A>& d_out, Index begin, Index end,
                 const BackwardScratch<A>& scratch) const {
    const auto run = f_.kv.run(b_, f_.kv_head(h_), begin, end);
    const Index n = run.count, D = f_.head_dim, Dv = f_.value_dim;
    const bool wants_logits = has_score_gradients || call_.query.wanted() || call_.key.wanted();
    const Rows<A> k = read_rows<A>(TensorView<const T, 2>{run.key, {n, D}, {run.key_stride, 1}}, scratch.key);
    const Rows<A> v = read_rows<A>(TensorView<const T, 2>{run.value, {n, Dv}, {run.value_stride, 1}}, scratch.value);
    const ConstMap<A> key(k.data, D, n, k.outer()), value(v.data, Dv, n, v.outer());  // Kᵀ and Vᵀ
    const Eigen::OuterStride<> stride(tiling_.keys);
    Map<A> p(scratch.weights, n, rows.count, stride), ds(scratch.d_logits, n, rows.count, stride);
    p.setZero();
    add_product<A>(f_.scale, {k.data, n, D, k.outer()}, q, p);
    if constexpr (has_score<Forward>) Map<A>(scratch.dots, n, rows.count, stride) = p;
    rows.score_and_mask(p.data(), tiling_.keys, begin, begin + n, tiling_.asked);
    ds.setZero();
    if (wants_logits) add_product<A>(A(1), {v.data, n, Dv, v.outer()}, d_out, ds);
    const Eigen::Map<const Eigen::Array<A, Eigen::Dynamic, 1>> delta(at_.delta + rows.first, rows.count);
    const bool finite =
        is_finite(q) && is_finite(d_out) && is_finite(key) && is_finite(value) && is_finite(ds) && is_finite(delta);
    for (Index i = 0; i < rows.count; ++i) {
      Array<A> logits(scratch.logits, n);
      if (has_score<Forward> || !finite) logits = p.col(i).array();
      weigh_row(rows, i, begin, p, ds, scratch);
      if constexpr (has_score<Forward>) differentiate_score(rows, i, begin, n, ds, scratch);
      if (!finite) add_pairs(rows.first + i, begin, logits, q.col(i), d_out.col(i), key, p.col(i), ds.col(i));
    }
    if (!finite) return n;
    const auto rows_of = [&](const Map<A>& x) { return ConstMap<A, Eigen::RowMajor>(x.data(), rows.count, n, stride); };
    if (call_.query.wanted())
      add_product<A>(key, {ds.data(), n, rows.count, stride}, sums(at_.d_query, rows.first, rows.count, D));
    if (call_.key.wanted()) add_product_by_rows<A>(q, rows_of(ds), sums(at_.d_key, begin, n, D));
    if (call_.value.wanted()) add_product_by_rows<A>(d_out, rows_of(p), sums(at_.d_value, begin, n, Dv));
    return n;
  }
  static Map<A> sums(A* all, Index first, Index count, Index width) {
    return {row(all, first, width), width, count, Eigen::OuterStride<>(width)};
  }

  /// Row i: its logits in p become the weights that multiply dO, dP in ds becomes dt.
  void weigh_row(const HeadRows<Forward>& rows, Index i, Index begin, Map<A>& p, Map<A>& ds,
                 const BackwardScratch<A>& scratch) const {
    const auto n = static_cast<Index>(p.rows());
    const Index row = rows.first + i;
    Array<A> weights(&p(0, i), n), dt(&ds(0, i), n), factors(scratch.factors, n);
    weigh(weights, call_.level[f_.row_state(b_, h_, row)]);
    if (f_.dropout.exist()) {
      rows.dropout_factors(i, begin, n, scratch.factors);
      dt *= factors;
    }
    dt = weights * (at_.weight[row] * dt - at_.delta[row]);
    weights *= at_.weight[row];
    if (f_.dropout.exist()) weights *= factors;
  }

  /// Row i's dt become ds, and what they add to the gradients of the score's own numbers is added.
  void differentiate_score(const HeadRows<Forward>& rows, Index i, Index begin, Index n, Map<A>& ds,
                           const BackwardScratch<A>& scratch) const {
    const auto score = at_head(f_.score, b_, h_);
    const auto lifted_score = lifted<NoScoreGradients, Dual<A>>(score, 0, 0);
    const Index q = rows.position(i);
    const A* const dots = scratch.dots + std::ptrdiff_t{i} * tiling_.keys;
    LongSum<A>* const slots = slots_of((rows.first + i) / tiling_.rows);
    for (Index j = 0; j < n; ++j) {
      if (scratch.logits[j] == hidden) continue;
      const Index k = begin + j;
      add_score_gradients<Wanted>(call_.score, score, slots, b_, h_, q, k, dots[j], ds(j, i));
      if constexpr (!is_additive<Score>)
        ds(j, i) *= lifted_score(Dual<A>::variable(dots[j]), b_, h_, q, k).derivative[0];
    }
  }

  /// What the pairs of one row add to the sums, hidden ones left out: 0 · NaN is NaN.
  void add_pairs(Index i, Index begin, const Array<A>& logits, const auto& q, const auto& d_out, const ConstMap<A>& key,
                 const auto& p, const auto& ds) const {
    for (Index j = 0; j < key.cols(); ++j) {
      if (logits[j] == hidden) continue;
      sums(at_.d_query, i, 1, f_.head_dim) += ds[j] * key.col(j);
      sums(at_.d_key, begin + j, 1, f_.head_dim) += ds[j] * q;
      sums(at_.d_value, begin + j, 1, f_.value_dim) += p[j] * d_out;
    }
  }

  const Call& call_;
  const Forward& f_;
  const BackwardTiling& tiling_;
  const HeadMemory<A>& at_;
  const Index b_, h_;
};

/// A call and the sizes of its parts, as BackwardHeads wants them.
template <class Call> class BackwardMachine {
  using A = Accumulator<typename Call::Scalar>;

 public:
  using Scalar = typename Call::Scalar;
  using Memory = HeadMemory<A>;
  using Scratch = BackwardScratch<A>;

  explicit BackwardMachine(const Call& call) : call_(call) {
    const Tiling forward(call.forward);
    tiling_ = {std::max<Index>(forward.queries, 1), forward.keys, forward.asked};
  }

  const Call& call() const { return call_; }
  int score_tables() const {
    using Score = decltype(at_head(call_.forward.score, Index{}, Index{}));
    return Tables<typename Call::WantedGradients, Score>::count();
  }
  const BackwardTiling& tiling() const { return tiling_; }
  Memory memory(Workspace::Frame& frame) const { return Memory(frame, tiling_, call_); }
  Scratch scratch(Workspace::Frame& frame) const { return Scratch(frame, tiling_, call_.forward); }
  HeadBackward<Call> head(const Memory& memory, Index b, Index h) const { return {call_, tiling_, memory, b, h}; }

 private:
  const Call& call_;
  BackwardTiling tiling_{};
};

/// The gradients of a call, from the states that attend() has left.
template <class Call, class Threads>
void attend_backward(const Call& call, Workspace& workspace, const Threads& threads) {
  run_heads(BackwardMachine<Call>(call), workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::eigen
