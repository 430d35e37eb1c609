// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "../../policy/mask.hpp"
#include "../../policy/mask/positional.hpp"
#include "../../policy/score.hpp"
#include "isa.hpp"
#include "vector.hpp"

/// Masks and scores on a tile of logits (keys, lanes) with queries in lanes: what every machine with such a tile
/// shares.
namespace mha::inline v0::detail::simd {

/// Rows of one register of logits, each of a query and a key of its own: element i of row r is the pair
/// (q[i] + r·q_step, k[i] + r·k_step) of head h of sequence b, at s + r·stride + i.
template <class A, class P> struct LogitPatch {
  const P* policy;
  A* s;
  std::ptrdiff_t stride;
  Index rows, b, h;
  const Index* q;
  const Index* k;
  Index q_step, k_step;
  A scale;  ///< of scores: from dot products to logits
};

// Queries in lanes and keys in lanes go through the same instructions, so that a pair's bits do not depend on which it
// was: in two loops the compiler would hoist, and fuse, different parts of the user's expression. Policies are copied
// and logits go through arrays of the body's own, because what may alias keeps a loop scalar.

/// A copy, unless copying may cost something.
template <class P> using LocalPolicy = std::conditional_t<std::is_trivially_copyable_v<P>, const P, const P&>;

/// s ← score(scale · s).
template <class A> struct ScoreBody {
  template <class Isa, class S> MHA_ALWAYS_INLINE static void run(LogitPatch<A, S> p) {
    constexpr int W = Vector<A, Isa>::width;
    LocalPolicy<S> score = *p.policy;
    for (Index r = 0; r < p.rows; ++r) {
      A* const s = p.s + r * p.stride;
      const Index q = r * p.q_step, k = r * p.k_step;
      A dots[std::size_t{W}], logits[std::size_t{W}];
      for (int i = 0; i < W; ++i) dots[i] = s[i];
      for (int i = 0; i < W; ++i)
        logits[i] = static_cast<A>(score(A(p.scale * dots[i]), p.b, p.h, p.q[i] + q, p.k[i] + k));
      for (int i = 0; i < W; ++i) s[i] = logits[i];
    }
  }
};

/// s ← −∞ where the mask says hidden.
template <class A> struct HideBody {
  template <class Isa, class M> MHA_ALWAYS_INLINE static void run(LogitPatch<A, M> p) {
    using Flag = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;
    constexpr int W = Vector<A, Isa>::width;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    LocalPolicy<M> mask = *p.policy;
    for (Index r = 0; r < p.rows; ++r) {
      A* const s = p.s + r * p.stride;
      const Index q = r * p.q_step, k = r * p.k_step;
      Flag seen[std::size_t{W}];
      for (int i = 0; i < W; ++i) seen[i] = mask(p.b, p.h, p.q[i] + q, p.k[i] + k);
      for (int i = 0; i < W; ++i) s[i] = seen[i] != 0 ? s[i] : hidden;
    }
  }
};

template <class A, class P> using PolicyKernel = void (*)(LogitPatch<A, P>);

/// Keys [begin, end) and what the mask says of them for all queries of a tile.
struct KeyRange {
  Index begin, end;
  TileVisibility seen;
};

/// The mask and the score of one head for queries [q_begin, q_begin + count), the columns of a tile.
///
/// Numerics  a pair's result depends on the pair alone, not on the tile or on the lane it is in
template <class A, class M, class S> class TilePolicies {
  using HeadScore = decltype(at_head(std::declval<const S&>(), Index{}, Index{}));
  static constexpr A hidden = -std::numeric_limits<A>::infinity();
  static constexpr Index widest = 64 / sizeof(A);

 public:
  static constexpr bool has_score = !std::is_same_v<S, NoScore>;

  TilePolicies(IsaLevel level, const M& mask, const S& score, Index b, Index h, Index q_begin, Index count)
      : mask_(mask), score_(at_head(score, b, h)), b_(b), h_(h), q_begin_(q_begin), count_(count) {
    with_isa(level, [&](auto isa) {
      using Isa = decltype(isa);
      width_ = Vector<A, Isa>::width;
      score_kernel_ = &Isa::template run<ScoreBody<A>, LogitPatch<A, HeadScore>>;
      hide_kernel_ = &Isa::template run<HideBody<A>, LogitPatch<A, M>>;
      return 0;
    });
  }

  /// What the mask says of keys [begin, end).
  TileVisibility visibility(Index begin, Index end) const {
    return tile(mask_, b_, h_, q_begin_, q_begin_ + count_, begin, end);
  }

  /// Keys [begin, end) without those that no query sees at either side, in steps of `grain`.
  KeyRange visible(Index begin, Index end, Index grain) const {
    const TileVisibility seen = visibility(begin, end);
    if (seen == TileVisibility::partial) {
      while (begin + grain < end && visibility(begin, begin + grain) == TileVisibility::none) begin += grain;
      while (end - grain > begin && visibility(end - grain, end) == TileVisibility::none) end -= grain;
    }
    return {begin, end, seen};
  }

  // The logit of the tile's key k and query i lies at s[k·lanes + i·apart]: queries are in lanes, or keys where lanes
  // is 1.

  /// s ← score(scale · s) for keys [begin, end).
  void score(A* s, Index lanes, A scale, Index begin, Index end, Index apart = 1) const {
    const Index whole = whole_registers(apart);
    for (Index i = 0; i < whole; i += width_)
      columns(score_kernel_, score_, s + i, lanes, scale, q_begin_ + i, begin, end);
    for (Index i = whole; i < count_; ++i)
      one_column(score_kernel_, score_, s + std::ptrdiff_t{i} * apart, lanes, scale, q_begin_ + i, begin, end);
  }

  /// s ← −∞ where the mask hides a pair of `keys`, asked `grain` keys at a time.
  void hide(A* s, Index lanes, const KeyRange& keys, Index grain, Index apart = 1) const {
    if (keys.seen == TileVisibility::full) return;
    const Index whole = whole_registers(apart);
    for (Index begin = keys.begin; whole > 0 && begin < keys.end; begin += grain) {
      const Index end = std::min(begin + grain, keys.end);
      if (visibility(begin, end) == TileVisibility::full) continue;
      A* const rows = s + std::ptrdiff_t{begin - keys.begin} * lanes;
      for (Index i = 0; i < whole; i += width_) hide_columns(rows + i, lanes, i, width_, begin, end);
    }
    for (Index i = whole; i < count_; ++i)
      hide_columns(s + std::ptrdiff_t{i} * apart, lanes, i, 1, keys.begin, keys.end);
  }

 private:
  /// Queries that fill registers of lanes.
  Index whole_registers(Index apart) const { return apart == 1 ? count_ / width_ * width_ : 0; }

  /// Queries [i, i + n) of the tile, one or a register of them, whose first column is s.
  void hide_columns(A* s, Index lanes, Index i, Index n, Index begin, Index end) const {
    const Index q = q_begin_ + i;
    const TileVisibility seen = tile(mask_, b_, h_, q, q + n, begin, end);
    if (seen == TileVisibility::none)
      for (Index k = 0; k < end - begin; ++k) std::fill_n(s + std::ptrdiff_t{k} * lanes, n, hidden);
    else if (seen == TileVisibility::partial && n == 1)
      one_column(hide_kernel_, mask_, s, lanes, A(0), q, begin, end);
    else if (seen == TileVisibility::partial)
      columns(hide_kernel_, mask_, s, lanes, A(0), q, begin, end);
  }

  /// A register of queries from q on, against each key.
  template <class P>
  void columns(PolicyKernel<A, P> kernel, const P& policy, A* s, Index lanes, A scale, Index q, Index begin,
               Index end) const {
    Index queries[std::size_t{widest}], keys[std::size_t{widest}];
    for (Index i = 0; i < width_; ++i) queries[i] = q + i;
    std::fill_n(keys, width_, begin);
    kernel({&policy, s, lanes, end - begin, b_, h_, queries, keys, 0, 1, scale});
  }

  /// One query against a register of keys at a time: for the few queries that do not fill one.
  template <class P>
  void one_column(PolicyKernel<A, P> kernel, const P& policy, A* s, Index lanes, A scale, Index q, Index begin,
                  Index end) const {
    constexpr Index chunk = 8 * widest;
    A row[std::size_t{chunk}];
    Index queries[std::size_t{widest}], keys[std::size_t{widest}];
    std::fill_n(queries, width_, q);
    for (Index first = begin; first < end; first += chunk) {
      const Index n = std::min(chunk, end - first), whole = n / width_;
      A* const column = s + std::ptrdiff_t{first - begin} * lanes;
      for (Index k = 0; k < n; ++k) row[k] = column[std::ptrdiff_t{k} * lanes];
      for (Index i = 0; i < width_; ++i) keys[i] = first + i;
      kernel({&policy, row, width_, whole, b_, h_, queries, keys, 0, width_, scale});
      if (whole * width_ <
          n) {  // the last register repeats the last key: a policy is asked for no pair beyond the call
        for (Index i = n; i < (whole + 1) * width_; ++i) row[i] = row[n - 1];
        for (Index i = 0; i < width_; ++i) keys[i] = std::min(first + whole * width_ + i, end - 1);
        kernel({&policy, row + whole * width_, width_, 1, b_, h_, queries, keys, 0, 0, scale});
      }
      for (Index k = 0; k < n; ++k) column[std::ptrdiff_t{k} * lanes] = row[k];
    }
  }

  const M& mask_;  // the call's
  HeadScore score_;
  Index b_, h_, q_begin_, count_, width_ = 1;
  PolicyKernel<A, HeadScore> score_kernel_ = nullptr;
  PolicyKernel<A, M> hide_kernel_ = nullptr;
};

/// Queries [begin, begin + count) of head h of sequence b: the columns of a tile.
struct TileQueries {
  Index b, h, begin, count;
};

/// A mask that outlives this, without its type: a kernel that asks through it is compiled once for all masks.
template <class A> class AnyMask {
 public:
  template <class M>
  AnyMask(const M& mask, IsaLevel level) : mask_(&mask), level_(level), visible_(visible_of<M>), hide_(hide_of<M>) {}

  /// TilePolicies::visible and hide of these queries.
  KeyRange visible(const TileQueries& queries, Index begin, Index end, Index grain) const {
    return visible_(*this, queries, begin, end, grain);
  }
  void hide(const TileQueries& queries, A* s, Index lanes, const KeyRange& keys, Index grain, Index apart = 1) const {
    hide_(*this, queries, s, lanes, keys, grain, apart);
  }

 private:
  template <class M> TilePolicies<A, M, NoScore> of(const TileQueries& q) const {
    return {level_, *static_cast<const M*>(mask_), NoScore{}, q.b, q.h, q.begin, q.count};
  }
  template <class M>
  static KeyRange visible_of(const AnyMask& self, const TileQueries& queries, Index begin, Index end, Index grain) {
    return self.of<M>(queries).visible(begin, end, grain);
  }
  template <class M>
  static void hide_of(const AnyMask& self, const TileQueries& queries, A* s, Index lanes, const KeyRange& keys,
                      Index grain, Index apart) {
    self.of<M>(queries).hide(s, lanes, keys, grain, apart);
  }

  const void* mask_;
  IsaLevel level_;
  KeyRange (*visible_)(const AnyMask&, const TileQueries&, Index, Index, Index);
  void (*hide_)(const AnyMask&, const TileQueries&, A*, Index, const KeyRange&, Index, Index);
};

/// The same for a score.
template <class A> class AnyScore {
 public:
  template <class S>
  AnyScore(const S& score, IsaLevel level)
      : exists(!std::is_same_v<S, NoScore>), score_(&score), level_(level), apply_(apply_of<S>) {}

  const bool exists;

  /// TilePolicies::score of these queries.
  void apply(const TileQueries& queries, A* s, Index lanes, A scale, Index begin, Index end, Index apart = 1) const {
    apply_(*this, queries, s, lanes, scale, begin, end, apart);
  }

 private:
  template <class S>
  static void apply_of(const AnyScore& self, const TileQueries& q, A* s, Index lanes, A scale, Index begin, Index end,
                       Index apart) {
    const Full full;
    TilePolicies<A, Full, S>(self.level_, full, *static_cast<const S*>(self.score_), q.b, q.h, q.begin, q.count)
        .score(s, lanes, scale, begin, end, apart);
  }

  const void* score_;
  IsaLevel level_;
  void (*apply_)(const AnyScore&, const TileQueries&, A*, Index, A, Index, Index, Index);
};

}  // namespace mha::inline v0::detail::simd
