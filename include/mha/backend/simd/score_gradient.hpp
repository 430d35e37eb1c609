// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "../../core/dual.hpp"
#include "../../policy/score_gradient.hpp"
#include "isa.hpp"
#include "tile_policies.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// A register of queries against some keys: element i of row r is the pair (q[i], k + r) of head h of sequence b, whose
/// logit is scale · dots. ds holds dt, and is multiplied by ∂t/∂s if that is asked for.
template <class A> struct ScoreGradientPatch {
  static constexpr int most = 8;  ///< variables at a time
  const void* score;              ///< as it is for the head
  const A* dots;
  A* ds;
  std::ptrdiff_t stride;
  Index rows, b, h;
  const Index* q;
  Index queries;  ///< of the register's lanes
  Index k;
  A scale;
  int first;              ///< slot
  bool multiply;          ///< dt ← dt · ∂t/∂s
  double* slots;          ///< += Σ dt · ∂t/∂θ
  A* const* tables;       ///< = dt · ∂t/∂(what the table adds), as ds lies
  std::ptrdiff_t offset;  ///< of ds in them
};

/// Slots slots from p.first on, and the score's tables.
template <class A, class Wanted, class S, int Slots, int Tables> struct ScoreGradientBody {
  template <class Isa> MHA_FLATTEN static void run(ScoreGradientPatch<A> p) {
    constexpr int W = Vector<A, Isa>::width, variables = 1 + Slots + Tables;
    using D = Dual<A, variables>;
    const auto score = lifted<Wanted, D>(*static_cast<const S*>(p.score), 1 - p.first, 1 + Slots);
    alignas(64) A sums[std::size_t{variables}][std::size_t{W}] = {};
    for (Index r = 0; r < p.rows; ++r) {
      const Index k = p.k + r;
      const std::ptrdiff_t row = r * p.stride;
      alignas(64) A dots[std::size_t{W}];
      alignas(64) A dt[std::size_t{W}];
      alignas(64) A slopes[std::size_t{variables}][std::size_t{W}];
      vector_t<A, Isa> x;
      load(x, p.dots + row);
      store(+dots, x);
      for (int i = 0; i < W; ++i) {
        const D t = score(D::variable(A(p.scale * dots[i])), p.b, p.h, p.q[i], k);
        for (int j = 0; j < variables; ++j) slopes[j][i] = t.derivative[j];
      }
      load(x, p.ds + row);
      store(+dt, x);
      for (int i = 0; i < W; ++i) dt[i] = choose(i < p.queries, dt[i], A(0));  // other lanes may hold NaN
      for (int j = 0; j < variables; ++j)  // a hidden pair has dt 0, whatever its derivatives are
        for (int i = 0; i < W; ++i) slopes[j][i] = choose(dt[i] == A(0), A(0), dt[i] * slopes[j][i]);
      for (int j = 1; j <= Slots; ++j)
        for (int i = 0; i < W; ++i) sums[j][i] += slopes[j][i];
      for (int j = 0; j < Tables; ++j) std::copy_n(slopes[1 + Slots + j], W, p.tables[j] + p.offset + row);
      if (!p.multiply) continue;
      load(x, +slopes[0]);
      store(p.ds + row, x);
    }
    for (int j = 1; j <= Slots; ++j)
      for (int i = 0; i < W; ++i) p.slots[p.first + j - 1] += double(sums[j][i]);
  }
};

/// The gradients of a score's own numbers, without its type. The score must outlive this.
template <class A> class AnyScoreGradient {
  static constexpr int most = ScoreGradientPatch<A>::most;

 public:
  template <class Wanted, class S> AnyScoreGradient(Wanted, const S& score, IsaLevel level) : score_(&score) {
    using Head = decltype(at_head(score, Index{}, Index{}));
    constexpr int count = Slots<Wanted, Head>::count(), tables = Tables<Wanted, Head>::count();
    slots_ = count;
    tables_ = tables;
    if constexpr (count + tables > 0 && !(count == 0 && is_additive<S>)) {
      apply_ = [](const AnyScoreGradient& self, ScoreGradientPatch<A> patch) {
        const Head head = at_head(*static_cast<const S*>(self.score_), patch.b, patch.h);
        patch.score = &head;
        self.passes(patch);
      };
      with_isa(level, [&](auto isa) {
        using Isa = decltype(isa);
        width_ = Vector<A, Isa>::width;
        if constexpr (count + tables <= most) {
          together_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, count, tables>, ScoreGradientPatch<A>>;
        } else {
          some_slots_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, most, 0>, ScoreGradientPatch<A>>;
          if constexpr (tables > 0)
            all_tables_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, 0, tables>, ScoreGradientPatch<A>>;
        }
        return 0;
      });
    }
  }

  /// Whether anything of the score has a gradient.
  bool exists() const { return slots_ + tables_ > 0; }
  int slots() const { return slots_; }
  int tables() const { return tables_; }
  /// Slots in memory: whole passes.
  int padded_slots() const { return (slots_ + most - 1) / most * most; }
  /// Whether dt must go through apply(): else it is the gradient of what the only table adds, and of the logits.
  bool evaluates() const { return apply_ != nullptr; }

  /// ds (keys, count): dt becomes ds if that is wanted; slots (padded_slots) += the sums over all pairs; table j ← its
  /// gradients, at `offset`. dots and ds lie `lanes` apart.
  void apply(const TileQueries& of, const A* dots, A* ds, Index lanes, Index count, A scale, Index k, Index keys,
             bool multiply, double* slots, A* const* tables, std::ptrdiff_t offset) const {
    Index queries[64 / sizeof(A)];
    for (Index lane = 0; lane < count && lane < of.count; lane += width_) {
      for (Index i = 0; i < width_; ++i) queries[i] = of.begin + std::min(lane + i, of.count - 1);
      apply_(*this, {nullptr, dots + lane, ds + lane, lanes, keys, of.b, of.h, queries,
                     std::min(width_, of.count - lane), k, scale, 0, multiply, slots, tables, offset + lane});
    }
  }

 private:
  void passes(ScoreGradientPatch<A> patch) const {
    if (together_ != nullptr) return together_(patch);
    const bool multiply = patch.multiply;
    for (patch.first = 0; patch.first < slots_; patch.first += most) {
      patch.multiply = multiply && tables_ == 0 && patch.first + most >= slots_;
      some_slots_(patch);
    }
    patch.multiply = multiply;
    if (all_tables_ != nullptr) all_tables_(patch);
  }

  const void* score_;
  void (*apply_)(const AnyScoreGradient&, ScoreGradientPatch<A>) = nullptr;
  void (*together_)(ScoreGradientPatch<A>) = nullptr;
  void (*some_slots_)(ScoreGradientPatch<A>) = nullptr;
  void (*all_tables_)(ScoreGradientPatch<A>) = nullptr;
  int slots_ = 0, tables_ = 0;
  Index width_ = 1;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
