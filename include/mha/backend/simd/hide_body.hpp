// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "../../policy/mask.hpp"
#include "../../policy/mask/dense.hpp"
#include "isa.hpp"
#include "transpose.hpp"
#include "vector.hpp"

/// Masks on a tile of logits: the bodies that are compiled for each mask. A table of booleans is read in registers.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Rows of one register of logits, each of a query and a key of its own: element i of row r is the pair
/// (q[i] + r·q_step, k[i] + r·k_step) of head h of sequence b, at s + r·stride + i.
template <class A> struct LogitPatch {
  const void* policy;
  A* s;
  std::ptrdiff_t stride;
  Index rows, b, h;
  const Index* q;
  const Index* k;
  Index q_step, k_step;
  A scale;  ///< of scores: from dot products to logits
};

/// A flag of a pair, as wide as its logit.
template <class A> using Flag = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;

/// Flags of so many rows are made at a time: as many as load_columns() has bytes of a table's row.
template <class A, class Isa>
inline constexpr Index rows_at_once = columns_at_once<vector_t<A, Isa>>* static_cast<int>(sizeof(A));

template <class A, class Isa>
using Flags = Flag<A>[std::size_t{rows_at_once<A, Isa>}][std::size_t{Vector<A, Isa>::width}];

/// seen (n, lanes) ← not 0 where the mask shows a pair of rows [first, first + n) of a patch.
template <class A, class M> struct SeenBody {
  template <class Isa>
  MHA_FLATTEN static void run(const LogitPatch<A>& p, const M& of, Index first, Index n, Flags<A, Isa>& seen) {
    constexpr int W = Vector<A, Isa>::width;
    const Index q = first * p.q_step, k = first * p.k_step;
    const TileVisibility all = tile(of, p.b, p.h, p.q[0] + q, p.q[W - 1] + q + (n - 1) * p.q_step + 1, p.k[0] + k,
                                    p.k[W - 1] + k + (n - 1) * p.k_step + 1);
    if (all != TileVisibility::partial) {
      for (Index r = 0; r < n; ++r)
        for (int i = 0; i < W; ++i) seen[r][i] = all == TileVisibility::full;
      return;
    }
    LocalCopy<M> mask = of;
    for (Index r = 0; r < n; ++r)
      for (int i = 0; i < W; ++i) seen[r][i] = mask(p.b, p.h, p.q[i] + q + r * p.q_step, p.k[i] + k + r * p.k_step);
  }
};

// Those with a table are inlined always, without optimization too, because the registers are those of the caller's
// instruction set.

template <class A> struct SeenBody<A, Dense> {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const LogitPatch<A>& p, const Dense& mask, Index first, Index n,
                                    Flags<A, Isa>& seen) {
    constexpr int W = Vector<A, Isa>::width;
    const std::ptrdiff_t by_query = mask.visible.stride[2], by_key = mask.visible.stride[3];
    const std::ptrdiff_t by_row = p.q_step * by_query + p.k_step * by_key;
    const Index origin = mask.origin[p.b];
    const auto at = [&](Index r, int i) {
      return &mask.visible(p.b, p.h, p.q[i] + (first + r) * p.q_step - origin, p.k[i] + (first + r) * p.k_step);
    };
    const bool queries = p.q[W - 1] - p.q[0] == W - 1, keys = p.k[W - 1] - p.k[0] == W - 1;
    const std::ptrdiff_t by_lane = queries ? by_query : by_key;
    if ((queries || keys) && by_lane == 1) {
      for (Index r = 0; r < n; ++r) {
        const bool* const from = at(r, 0);
        for (int i = 0; i < W; ++i) seen[r][i] = from[i];
      }
    } else if ((queries || keys) && by_lane == 0) {
      for (Index r = 0; r < n; ++r) {
        const Flag<A> all = *at(r, 0);
        for (int i = 0; i < W; ++i) seen[r][i] = all;
      }
    } else if (queries && by_row == 1) {
      constexpr Index N = rows_at_once<A, Isa>;
      if (n == N) return columns<Isa>(reinterpret_cast<const char*>(at(0, 0)), by_query, seen);
      char rows[std::size_t{W}][std::size_t{N}] = {};
      for (int i = 0; i < W; ++i) std::memcpy(rows[i], at(0, i), static_cast<std::size_t>(n));
      columns<Isa>(rows[0], N, seen);
    } else {
      for (int i = 0; i < W; ++i) {
        const bool* const from = at(0, i);
        for (Index r = 0; r < n; ++r) seen[r][i] = from[r * by_row];
      }
    }
  }

 private:
  /// seen (bytes, lanes) = the bytes of rows `stride` apart, one of each lane. They are transposed as words.
  template <class Isa>
  MHA_ALWAYS_INLINE static void columns(const char* from, std::ptrdiff_t stride, Flags<A, Isa>& seen) {
    using V = typename Vector<A, Isa>::int_type;
    using Word = typename Vector<A, Isa>::Int;
    constexpr int W = Vector<A, Isa>::width, C = columns_at_once<V>, bytes = sizeof(Word);
    V columns[std::size_t{C}];
    load_columns(columns, from, stride);
    for (int c = 0; c < C; ++c) {
      alignas(64) Word words[std::size_t{W}];
      store(+words, columns[c]);
      MHA_UNROLL_8
      for (int j = 0; j < bytes; ++j)
        for (int i = 0; i < W; ++i)
          seen[c * bytes + j][i] = static_cast<Flag<A>>(words[i] >> (8 * j) & 0xff);  // little-endian
    }
  }
};

/// Of And and Or.
template <class A, template <class, class> class Pair, class X, class Y>
requires(contains_table<Pair<X, Y>>) struct SeenBody<A, Pair<X, Y>> {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const LogitPatch<A>& p, const Pair<X, Y>& mask, Index first, Index n,
                                    Flags<A, Isa>& seen) {
    alignas(64) Flags<A, Isa> other;
    SeenBody<A, X>::template run<Isa>(p, mask.a, first, n, seen);
    SeenBody<A, Y>::template run<Isa>(p, mask.b, first, n, other);
    for (Index r = 0; r < n; ++r)
      for (int i = 0; i < Vector<A, Isa>::width; ++i)
        if constexpr (std::is_same_v<Pair<X, Y>, And<X, Y>>)
          seen[r][i] = other[r][i] != 0 ? seen[r][i] : 0;
        else
          seen[r][i] |= other[r][i];
  }
};

template <class A, class X>
requires(contains_table<X>) struct SeenBody<A, Not<X>> {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const LogitPatch<A>& p, const Not<X>& mask, Index first, Index n,
                                    Flags<A, Isa>& seen) {
    SeenBody<A, X>::template run<Isa>(p, mask.a, first, n, seen);
    for (Index r = 0; r < n; ++r)
      for (int i = 0; i < Vector<A, Isa>::width; ++i) seen[r][i] = seen[r][i] == 0;
  }
};

// ---- the bodies ----

/// What a mask without a tile() shows of a patch, whose logits it does not know: s[0] ← 1 if a pair is shown and s[1] ←
/// 1 if one is hidden; it stops once both are 1.
template <class A, class M> struct LookBody {
  template <class Isa> MHA_FLATTEN static void run(LogitPatch<A> p) {
    using V = typename Vector<A, Isa>::int_type;
    using Int = typename Vector<A, Isa>::Int;
    // Most masks that are of no shape show both in the first of a few queries or keys, whichever are in lanes.
    const Index few = p.k_step > 1 ? 1 : 8;
    const V one = V{} + 1;
    for (Index first = 0, n = 0; first < p.rows; first += n) {
      n = std::min(first == 0 ? few : rows_at_once<A, Isa>, p.rows - first);
      alignas(64) Flags<A, Isa> seen;
      SeenBody<A, M>::template run<Isa>(p, *static_cast<const M*>(p.policy), first, n, seen);
      V shown{}, hidden{};
      for (Index r = 0; r < n; ++r) {
        V row;
        load(row, reinterpret_cast<const Int*>(+seen[r]));
        shown = shown | row;
        hidden = hidden | (row ^ one);
      }
      std::uint64_t words[2][sizeof(V) / sizeof(std::uint64_t)], any[2] = {};
      std::memcpy(words[0], &shown, sizeof(V));
      std::memcpy(words[1], &hidden, sizeof(V));
      for (std::size_t i = 0; i < std::size(words[0]); ++i) {
        any[0] |= words[0][i];
        any[1] |= words[1][i];
      }
      if (any[0] != 0) p.s[0] = A(1);
      if (any[1] != 0) p.s[1] = A(1);
      if (p.s[0] + p.s[1] == A(2)) return;
    }
  }
};

/// s ← −∞ where the mask says hidden.
template <class A, class M> struct HideBody {
  template <class Isa> MHA_FLATTEN static void run(LogitPatch<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    LocalCopy<M> mask = *static_cast<const M*>(p.policy);
    for (Index r = 0; r < p.rows; ++r) {
      A* const s = p.s + r * p.stride;
      const Index q = r * p.q_step, k = r * p.k_step;
      Flag<A> seen[std::size_t{W}];
      for (int i = 0; i < W; ++i) seen[i] = mask(p.b, p.h, p.q[i] + q, p.k[i] + k);
      for (int i = 0; i < W; ++i) s[i] = seen[i] != 0 ? s[i] : hidden;
    }
  }
};

template <class A, class M>
requires(contains_table<M>) struct HideBody<A, M> {
  template <class Isa> MHA_ALWAYS_INLINE static void run(LogitPatch<A> p) {
    constexpr Index N = rows_at_once<A, Isa>;
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    for (Index first = 0; first < p.rows; first += N) {
      const Index n = std::min(N, p.rows - first);
      alignas(64) Flags<A, Isa> seen;
      SeenBody<A, M>::template run<Isa>(p, *static_cast<const M*>(p.policy), first, n, seen);
      for (Index r = 0; r < n; ++r) {
        A* const s = p.s + (first + r) * p.stride;
        for (int i = 0; i < Vector<A, Isa>::width; ++i) s[i] = seen[r][i] != 0 ? s[i] : hidden;
      }
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
