// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "../../core/dual.hpp"
#include "../../policy/score_gradient.hpp"
#include "isa.hpp"
#include "tile_lanes.hpp"
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
  int own;                ///< the first slot of scores that accumulate
  bool multiply;          ///< dt ← dt · ∂t/∂s
  double* slots;          ///< += Σ dt · ∂t/∂θ
  A* const* tables;       ///< = dt · ∂t/∂(what the table adds), as ds lies
  std::ptrdiff_t offset;  ///< of ds in them
};

/// Slots slots from p.first on, and the score's tables and parts that accumulate.
template <class A, class Wanted, class S, int Slots, int Tables, int Own> struct ScoreGradientBody {
  template <class Isa> MHA_FLATTEN static void run(ScoreGradientPatch<A> p) {
    constexpr int W = Vector<A, Isa>::width, first_own = 1 + Slots + Tables, variables = first_own + Own;
    using D = Dual<A, variables>;
    const S& given = *static_cast<const S*>(p.score);
    // Scores that accumulate write theirs in passes of dual numbers too, where they are not read.
    A input[std::size_t{accumulating_count<Wanted, S>} + 1], inputs[std::size_t{Own} + 1][std::size_t{W}];
    const auto score = lifted<Wanted, D>(given, 1 - p.first, 1 + Slots, first_own, +input);
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
        for (int j = 0; j < Own; ++j) inputs[j][i] = input[j];
      }
      load(x, p.ds + row);
      store(+dt, x);
      for (int i = 0; i < W; ++i) dt[i] = choose(i < p.queries, dt[i], A(0));  // other lanes may hold NaN
      for (int j = 0; j < variables; ++j)  // a hidden pair has dt 0, whatever its derivatives are
        for (int i = 0; i < W; ++i) slopes[j][i] = choose(dt[i] == A(0), A(0), dt[i] * slopes[j][i]);
      for (int j = 1; j <= Slots; ++j)
        for (int i = 0; i < W; ++i) sums[j][i] += slopes[j][i];
      for (int j = 0; j < Tables; ++j) std::copy_n(slopes[1 + Slots + j], W, p.tables[j] + p.offset + row);
      if constexpr (Own > 0) {
        double* to = p.slots + p.own;
        int j = 0;
        for_each_accumulating<Wanted>(given, [&](const auto& part) {
          const auto gradient = span_for<std::remove_cvref_t<decltype(part)>>(to, std::size(part.numbers()));
          for (int i = 0; i < W; ++i)
            if (const A d = slopes[first_own + j][i]; d != A(0))
              part.accumulate(gradient, d, inputs[j][i], p.b, p.h, p.q[i], k);
          to += gradient.size();
          ++j;
        });
      }
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
    constexpr int count = Slots<Wanted, Head>::count(), tables = Tables<Wanted, Head>::count(),
                  own = Accumulating<Wanted, Head>::count();
    passes_ = count;
    slots_ = count + accumulated_numbers<Wanted>(score);
    tables_ = tables;
    if constexpr (count + tables + own > 0 && !(count + own == 0 && is_additive<S>)) {
      apply_ = [](const AnyScoreGradient& self, ScoreGradientPatch<A> patch) {
        const Head head = at_head(*static_cast<const S*>(self.score_), patch.b, patch.h);
        patch.score = &head;
        self.passes(patch);
      };
      with_isa(level, [&](auto isa) {
        using Isa = decltype(isa);
        width_ = Vector<A, Isa>::width;
        if constexpr (count + tables + own <= most) {
          together_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, count, tables, own>, ScoreGradientPatch<A>>;
        } else {
          some_slots_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, most, 0, 0>, ScoreGradientPatch<A>>;
          if constexpr (tables + own > 0)
            no_slots_ = &Isa::template run<ScoreGradientBody<A, Wanted, Head, 0, tables, own>, ScoreGradientPatch<A>>;
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
                     std::min(width_, of.count - lane), k, scale, 0, passes_, multiply, slots, tables, offset + lane});
    }
  }

 private:
  void passes(ScoreGradientPatch<A> patch) const {
    if (together_ != nullptr) return together_(patch);
    const bool multiply = patch.multiply;
    for (patch.first = 0; patch.first < passes_; patch.first += most) {
      patch.multiply = multiply && no_slots_ == nullptr && patch.first + most >= passes_;
      some_slots_(patch);
    }
    patch.multiply = multiply;
    if (no_slots_ != nullptr) no_slots_(patch);
  }

  const void* score_;
  void (*apply_)(const AnyScoreGradient&, ScoreGradientPatch<A>) = nullptr;
  void (*together_)(ScoreGradientPatch<A>) = nullptr;
  void (*some_slots_)(ScoreGradientPatch<A>) = nullptr;
  void (*no_slots_)(ScoreGradientPatch<A>) = nullptr;
  int slots_ = 0, passes_ = 0, tables_ = 0;  ///< of the slots, passes_ by dual numbers
  Index width_ = 1;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
