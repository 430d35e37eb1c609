// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

#include "../../cache/any_kv.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/mask/positional.hpp"
#include "../../policy/score.hpp"
#include "../../policy/score/additive_bias.hpp"
#include "../backend.hpp"
#include "hidden_tiles.hpp"
#include "hide_body.hpp"
#include "isa.hpp"
#include "tile_lanes.hpp"
#include "transpose.hpp"
#include "vector.hpp"

/// Masks and scores on a tile of logits (keys, lanes) with queries in lanes: what every machine with such a tile
/// shares. A policy is known to its own kernels alone; all other code is compiled once for all policies.
namespace mha::inline MHA_NAMESPACE::detail::simd {

// Queries in lanes and keys in lanes go through the same instructions, so that a pair's bits do not depend on which it
// was: in two loops the compiler would hoist, and fuse, different parts of the user's expression. Policies are copied
// and logits go through arrays of the body's own, because what may alias keeps a loop scalar. The bodies are not marked
// to be inlined always, as others are: the compilers would then leave a long policy out of line, where it is scalar.

/// s ← score(scale · s).
template <class A, class S> struct ScoreBody {
  template <class Isa> MHA_FLATTEN static void run(LogitPatch<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    LocalCopy<S> score = *static_cast<const S*>(p.policy);
    for (Index r = 0; r < p.rows; ++r) {
      A* const s = p.s + r * p.stride;
      const Index q = r * p.q_step, k = r * p.k_step;
      alignas(64) A dots[std::size_t{W}];
      alignas(64) A logits[std::size_t{W}];
      vector_t<A, Isa> x;
      load(x, s);
      store(+dots, x);
      for (int i = 0; i < W; ++i)
        logits[i] = static_cast<A>(score(A(p.scale * dots[i]), p.b, p.h, p.q[i] + q, p.k[i] + k));
      load(x, +logits);
      store(s, x);
    }
  }
};

/// The same where a table of the sums' scalar, float or a narrower one is added. It is read in registers where it lies
/// so, which takes far less time than a load for each pair. Always inlined, without optimization too, because the
/// registers are those of the caller's instruction set.
template <class A, class B>
requires(std::is_same_v<Accumulator<B>, A> ||
         std::is_same_v<Accumulator<B>, float>) struct ScoreBody<A, AdditiveBias<B>> {
  template <class Isa> MHA_ALWAYS_INLINE static void run(LogitPatch<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr Index C = columns_at_once<vector_t<A, Isa>>;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    const auto& score = *static_cast<const AdditiveBias<B>*>(p.policy);
    for (Index first = 0; first < p.rows; first += C) {
      const Index n = std::min(C, p.rows - first);
      alignas(64) A added[std::size_t{C}][std::size_t{W}];
      read<vector_t<A, Isa>>(p, score, first, n, added);
      // One loop, wherever the numbers come from: a pair's bits must not depend on that either.
      for (Index r = 0; r < n; ++r) {
        A* const s = p.s + (first + r) * p.stride;
        alignas(64) A logits[std::size_t{W}];
        vector_t<A, Isa> x;
        load(x, s);
        store(+logits, x);
        for (int i = 0; i < W; ++i) {
          const A sum = A(p.scale * logits[i]) + added[r][i];
          logits[i] = added[r][i] == hidden ? hidden : sum;
        }
        load(x, +logits);
        store(s, x);
      }
    }
  }

 private:
  /// added (n, lanes) = the table's elements of n rows from `first` on.
  template <class V, std::size_t C, std::size_t W>
  MHA_ALWAYS_INLINE static void read(const LogitPatch<A>& p, const AdditiveBias<B>& score, Index first, Index n,
                                     A (&added)[C][W]) {
    const std::ptrdiff_t by_query = score.bias.stride[2], by_key = score.bias.stride[3];
    const B* const table = &score.bias(p.b, p.h, 0, 0);
    const Index origin = score.origin[p.b];
    const auto at = [&](Index r, std::size_t i) {
      return table + (p.q[i] + (first + r) * p.q_step - origin) * by_query + (p.k[i] + (first + r) * p.k_step) * by_key;
    };
    const bool queries = p.q[W - 1] - p.q[0] == Index{W} - 1, keys = p.k[W - 1] - p.k[0] == Index{W} - 1;
    if constexpr (std::is_same_v<A, B>) {
      if ((queries && by_query == 1) || (keys && by_key == 1)) {
        for (Index r = 0; r < n; ++r) {
          V x;
          load(x, at(r, 0));
          store(+added[r], x);
        }
        return;
      }
      if (queries && p.k_step == 1 && by_key == 1 && n == Index{C}) {
        V columns[C];
        load_columns(columns, reinterpret_cast<const char*>(at(0, 0)), by_query * std::ptrdiff_t{sizeof(B)});
        for (std::size_t r = 0; r < C; ++r) store(+added[r], columns[r]);
        return;
      }
    }
    const std::ptrdiff_t by_row = p.q_step * by_query + p.k_step * by_key;
    for (std::size_t i = 0; i < W; ++i) {
      const B* from = at(0, i);
      for (Index r = 0; r < n; ++r, from += by_row) added[r][i] = static_cast<A>(*from);
    }
  }
};

template <class S> constexpr bool contains_bias = false;
template <class B> constexpr bool contains_bias<AdditiveBias<B>> = true;
template <class X, class Y> constexpr bool contains_bias<Chain<X, Y>> = contains_bias<X> || contains_bias<Y>;

/// A Chain with a table: one score after the other, each on all pairs.
template <class A, class X, class Y>
requires(contains_bias<X> || contains_bias<Y>) struct ScoreBody<A, Chain<X, Y>> {
  template <class Isa> MHA_ALWAYS_INLINE static void run(LogitPatch<A> p) {
    const auto& chain = *static_cast<const Chain<X, Y>*>(p.policy);
    p.policy = &chain.first;
    ScoreBody<A, X>::template run<Isa>(p);
    p.policy = &chain.second;
    p.scale = A(1);
    ScoreBody<A, Y>::template run<Isa>(p);
  }
};

/// The kernel of a policy at the level in use, and how a tile is cut into registers for it.
template <class A> class PolicyKernel {
  static constexpr Index widest = 64 / sizeof(A);

 public:
  PolicyKernel() = default;
  template <class Body> static PolicyKernel of(IsaLevel level) {
    return with_isa(level, [](auto isa) {
      using Isa = decltype(isa);
      PolicyKernel kernel;
      kernel.run_ = &Isa::template run<Body, LogitPatch<A>>;
      kernel.width_ = Vector<A, Isa>::width;
      return kernel;
    });
  }

  bool exists() const { return run_ != nullptr; }
  Index width() const { return width_; }

  /// Queries that fill registers of lanes.
  Index whole_registers(Index count, Index apart) const { return apart == 1 ? count / width_ * width_ : 0; }

  /// A register of queries from q on, against each of keys [begin, end).
  void columns(const void* policy, const TileQueries& of, A* s, Index lanes, A scale, Index q, Index begin,
               Index end) const {
    Index queries[std::size_t{widest}], keys[std::size_t{widest}];
    for (Index i = 0; i < width_; ++i) queries[i] = q + i;
    std::fill_n(keys, width_, begin);
    run_({policy, s, lanes, end - begin, of.b, of.h, queries, keys, 0, 1, scale});
  }

  /// One query against a register of keys at a time: for the few queries that do not fill one.
  void one_column(const void* policy, const TileQueries& of, A* s, Index lanes, A scale, Index q, Index begin,
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
      run_({policy, row, width_, whole, of.b, of.h, queries, keys, 0, width_, scale});
      // The last register repeats the last key: a policy is asked for no pair beyond the call.
      if (whole * width_ < n) {
        for (Index i = n; i < (whole + 1) * width_; ++i) row[i] = row[n - 1];
        for (Index i = 0; i < width_; ++i) keys[i] = std::min(first + whole * width_ + i, end - 1);
        run_({policy, row + whole * width_, width_, 1, of.b, of.h, queries, keys, 0, 0, scale});
      }
      for (Index k = 0; k < n; ++k) column[std::ptrdiff_t{k} * lanes] = row[k];
    }
  }

  /// What a kernel that looks at a mask finds of queries × keys [begin, end): by registers of queries, of which the
  /// last begins early where it would not be full, or else of keys. It asks for no pair beyond the call. Where only
  /// `none` is of interest, one pair that is shown ends it.
  TileVisibility look(const void* mask, const TileQueries& of, Index begin, Index end, bool only_none = false) const {
    A found[2] = {A(0), A(only_none)};  // a pair that is shown, one that is hidden
    Index queries[std::size_t{widest}], keys[std::size_t{widest}];
    const auto both = [&] { return found[0] + found[1] == A(2); };
    if (of.count >= width_) {
      std::fill_n(keys, width_, begin);
      for (Index first = 0; first < of.count && !both(); first += width_) {
        for (Index i = 0; i < width_; ++i) queries[i] = of.begin + std::min(first, of.count - width_) + i;
        run_({mask, found, 0, end - begin, of.b, of.h, queries, keys, 0, 1, A(0)});
      }
    } else {
      const Index whole = (end - begin) / width_, rest = begin + whole * width_;
      for (Index q = 0; q < of.count && !both(); ++q) {
        std::fill_n(queries, width_, of.begin + q);
        for (Index i = 0; i < width_; ++i) keys[i] = begin + i;
        run_({mask, found, 0, whole, of.b, of.h, queries, keys, 0, width_, A(0)});
        if (rest == end) continue;
        for (Index i = 0; i < width_; ++i) keys[i] = std::min(rest + i, end - 1);
        run_({mask, found, 0, 1, of.b, of.h, queries, keys, 0, 0, A(0)});
      }
    }
    return both() ? TileVisibility::partial : found[0] != A(0) ? TileVisibility::full : TileVisibility::none;
  }

 private:
  void (*run_)(LogitPatch<A>) = nullptr;
  Index width_ = 1;
};

// In a tile the logit of key k and query i lies at s[k·lanes + i·apart]: queries are in lanes, or keys where lanes
// is 1. A pair's result depends on the pair alone, not on the tile or on the lane it is in.

/// A mask that outlives this, without its type: a kernel that asks through it is compiled once for all masks. It knows
/// the tiles that the call's score, a table of −∞, hides as a whole.
template <class A> class AnyMask {
 public:
  template <class M, class S = NoScore>
  AnyMask(const M& mask, IsaLevel level, [[maybe_unused]] const S& score = {}) : mask_(&mask), tile_(tile_of<M>) {
    if constexpr (LastTable<S>::exists) {
      score_ = &score;
      hidden_by_score_ = hidden_by<S>;
    }
    if constexpr (!std::is_same_v<M, Full>) hide_ = PolicyKernel<A>::template of<HideBody<A, M>>(level);
    if constexpr (contains_table<M>) {
      least_ = 64;
    } else if constexpr (silent_on_tiles<M>) {
      look_ = PolicyKernel<A>::template of<LookBody<A, M>>(level);
      least_ = block;
    }
  }

  /// What the mask says of keys [begin, end).
  TileVisibility visibility(const TileQueries& of, Index begin, Index end) const {
    return tile_(mask_, of, begin, end);
  }

  /// Keys [begin, end) without those that no query sees at either side, in steps of `grain`. A mask without a tile() is
  /// asked for the pairs of a block or a part of one: for a functor that the compiler vectorises about a tenth of the
  /// time of computing them, and for one that it cannot see through, such as a std::function, as long.
  KeyRange visible(const TileQueries& of, Index begin, Index end, Index grain) const {
    constexpr Index part = 32;  // keys; of fewer pairs than a block's keys the question takes as long
    const auto trim = [&](Index step, auto&& says) {
      while (begin + step < end && says(begin, begin + step) == TileVisibility::none) begin += step;
      while (end - step > begin && says(end - step, end) == TileVisibility::none) end -= step;
    };
    TileVisibility seen = visibility(of, begin, end);
    // Of a tile that the mask hides the table is not read: it may never have been written.
    if (seen != TileVisibility::none && hidden_by_score_ != nullptr && end - begin <= block &&
        hidden_by_score_(score_, of, begin, end))
      return {begin, end, TileVisibility::none};
    if (seen != TileVisibility::partial) return {begin, end, seen};
    trim(grain, [&](Index from, Index to) { return visibility(of, from, to); });
    const Index n = end - begin;
    if (!look_.exists() || n > block || n * of.count < block) return {begin, end, seen};
    seen = look_.look(mask_, of, begin, end, n <= part);
    if (seen == TileVisibility::partial && part * of.count >= block)
      trim(part, [&](Index from, Index to) { return look_.look(mask_, of, from, to, true); });
    return {begin, end, seen};
  }

  /// s ← −∞ where the mask hides a pair of `keys`, asked `grain` keys at a time.
  void hide(const TileQueries& of, A* s, Index lanes, const KeyRange& keys, Index grain, Index apart = 1) const {
    if (keys.seen == TileVisibility::full) return;
    grain = std::max(grain, least_);
    const Index whole = hide_.whole_registers(of.count, apart);
    for (Index begin = keys.begin; whole > 0 && begin < keys.end; begin += grain) {
      const Index end = std::min(begin + grain, keys.end);
      if (visibility(of, begin, end) == TileVisibility::full) continue;
      A* const rows = s + std::ptrdiff_t{begin - keys.begin} * lanes;
      for (Index i = 0; i < whole; i += hide_.width())
        hide_columns({of.b, of.h, of.begin + i, hide_.width()}, rows + i, lanes, begin, end);
    }
    for (Index i = whole; i < of.count; ++i)
      hide_columns({of.b, of.h, of.begin + i, 1}, s + std::ptrdiff_t{i} * apart, lanes, keys.begin, keys.end);
  }

 private:
  static constexpr Index block = 128;  ///< keys that a mask without a tile(), or a table, is asked about at once

  template <class M> static TileVisibility tile_of(const void* mask, const TileQueries& of, Index begin, Index end) {
    return tile_on_host(*static_cast<const M*>(mask), of, begin, end);
  }

  template <class S> static bool hidden_by(const void* score, const TileQueries& of, Index begin, Index end) {
    return hides_all(LastTable<S>::of(*static_cast<const S*>(score)), of, begin, end);
  }

  /// One query, or a register of them, whose first column is s.
  void hide_columns(const TileQueries& of, A* s, Index lanes, Index begin, Index end) const {
    const TileVisibility seen = visibility(of, begin, end);
    if (seen == TileVisibility::none)
      for (Index k = 0; k < end - begin; ++k)
        std::fill_n(s + std::ptrdiff_t{k} * lanes, of.count, -std::numeric_limits<A>::infinity());
    else if (seen == TileVisibility::partial && of.count == 1)
      hide_.one_column(mask_, of, s, lanes, A(0), of.begin, begin, end);
    else if (seen == TileVisibility::partial)
      hide_.columns(mask_, of, s, lanes, A(0), of.begin, begin, end);
  }

  const void* mask_;
  const void* score_ = nullptr;
  bool (*hidden_by_score_)(const void*, const TileQueries&, Index, Index) = nullptr;
  TileVisibility (*tile_)(const void*, const TileQueries&, Index, Index);
  PolicyKernel<A> hide_, look_;
  Index least_ = 1;  ///< keys to ask of at a time
};

/// The same for a score.
template <class A> class AnyScore {
 public:
  template <class S> AnyScore(const S& score, IsaLevel level) : exists(!std::is_same_v<S, NoScore>), score_(&score) {
    if constexpr (!std::is_same_v<S, NoScore>) {
      apply_ = apply_of<S>;
      kernel_ = PolicyKernel<A>::template of<ScoreBody<A, HeadScore<S>>>(level);
    }
  }

  const bool exists;

  /// s ← score(scale · s) for keys [begin, end).
  void apply(const TileQueries& of, A* s, Index lanes, A scale, Index begin, Index end, Index apart = 1) const {
    if (exists)
      apply_(*this, of, s, lanes, scale, begin, end, apart);
    else
      multiply(of, s, lanes, scale, end - begin, apart);
  }

 private:
  template <class S> using HeadScore = decltype(at_head(std::declval<const S&>(), Index{}, Index{}));

  template <class S>
  static void apply_of(const AnyScore& self, const TileQueries& of, A* s, Index lanes, A scale, Index begin, Index end,
                       Index apart) {
    const HeadScore<S> score = at_head(*static_cast<const S*>(self.score_), of.b, of.h);
    self.apply_at_head(&score, of, s, lanes, scale, begin, end, apart);
  }

  void apply_at_head(const void* score, const TileQueries& of, A* s, Index lanes, A scale, Index begin, Index end,
                     Index apart) const {
    const Index whole = kernel_.whole_registers(of.count, apart);
    for (Index i = 0; i < whole; i += kernel_.width())
      kernel_.columns(score, of, s + i, lanes, scale, of.begin + i, begin, end);
    for (Index i = whole; i < of.count; ++i)
      kernel_.one_column(score, of, s + std::ptrdiff_t{i} * apart, lanes, scale, of.begin + i, begin, end);
  }

  /// s ← scale · s.
  static void multiply(const TileQueries& of, A* s, Index lanes, A scale, Index keys, Index apart) {
    using V = vector_t<A, Baseline>;
    constexpr Index W = Vector<A, Baseline>::width;
    const bool in_rows = lanes == 1;
    const Index rows = in_rows ? of.count : keys, n = in_rows ? keys : of.count;
    for (Index r = 0; r < rows; ++r, s += in_rows ? apart : lanes) {
      Index i = 0;
      for (; i + W <= n; i += W) {
        V x;
        load(x, s + i);
        x = x * scale;
        store(s + i, x);
      }
      for (; i < n; ++i) s[i] *= scale;
    }
  }

  const void* score_;
  void (*apply_)(const AnyScore&, const TileQueries&, A*, Index, A, Index, Index, Index) = nullptr;
  PolicyKernel<A> kernel_;
};

/// A call whose policies and source have lost their types; Stored is the scalar of keys and values.
template <class T, class Stored = T>
using AnyCall = AttendCall<T, AnyKv<Stored>, AnyMask<Accumulator<T>>, AnyScore<Accumulator<T>>>;

/// The same call, which must outlive it.
template <class T, class Source, class M, class S>
AnyCall<T, typename Source::Scalar> any_call(const AttendCall<T, Source, M, S>& call, IsaLevel level) {
  using A = Accumulator<T>;
  return call.with(AnyKv<typename Source::Scalar>(call.kv), AnyMask<A>(call.mask, level, call.score),
                   AnyScore<A>(call.score, level));
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
