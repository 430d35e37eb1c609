// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../core/dual.hpp"
#include "../../policy/score_gradient.hpp"
#include "isa.hpp"
#include "tile_lanes.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// A register of queries against some keys: to ← ∂score/∂s at scale · dots, element i of row r for the pair (q[i], k +
/// r) of head h of sequence b.
template <class A> struct DerivativePatch {
  const void* score;
  const A* dots;
  A* to;
  std::ptrdiff_t stride;
  Index rows, b, h;
  const Index* q;
  Index k;
  A scale;
};

template <class A, class S> struct ScoreDerivativeBody {
  template <class Isa> MHA_FLATTEN static void run(DerivativePatch<A> p) {
    constexpr int W = Vector<A, Isa>::width;
    const auto score = lifted<NoScoreGradients, Dual<A>>(*static_cast<const S*>(p.score), 0, 0);
    for (Index r = 0; r < p.rows; ++r) {
      const Index k = p.k + r;
      alignas(64) A dots[std::size_t{W}];
      alignas(64) A derivatives[std::size_t{W}];
      vector_t<A, Isa> x;
      load(x, p.dots + r * p.stride);
      store(+dots, x);
      for (int i = 0; i < W; ++i)
        derivatives[i] = score(Dual<A>::variable(A(p.scale * dots[i])), p.b, p.h, p.q[i], k).derivative[0];
      load(x, +derivatives);
      store(p.to + r * p.stride, x);
    }
  }
};

/// The derivative of a score that outlives this, without its type.
template <class A> class AnyScoreDerivative {
 public:
  template <class S> AnyScoreDerivative(const S& score, IsaLevel level) : score_(&score) {
    if constexpr (!is_additive<S>) {
      using Head = decltype(at_head(score, Index{}, Index{}));
      apply_ = [](const AnyScoreDerivative& self, DerivativePatch<A> patch) {
        const Head head = at_head(*static_cast<const S*>(self.score_), patch.b, patch.h);
        patch.score = &head;
        self.run_(patch);
      };
      with_isa(level, [&](auto isa) {
        using Isa = decltype(isa);
        run_ = &Isa::template run<ScoreDerivativeBody<A, Head>, DerivativePatch<A>>;
        width_ = Vector<A, Isa>::width;
        return 0;
      });
    }
  }

  /// Whether the derivative is not 1 everywhere.
  bool exists() const { return apply_ != nullptr; }

  /// to (keys, count) = the derivative at scale · dots (keys, count) of keys from k on, rows `lanes` apart. A lane
  /// without a query asks for the last one.
  void apply(const TileQueries& of, const A* dots, Index lanes, Index count, A scale, Index k, Index keys,
             A* to) const {
    Index queries[64 / sizeof(A)];
    for (Index lane = 0; lane < count; lane += width_) {
      for (Index i = 0; i < width_; ++i) queries[i] = of.begin + std::min(lane + i, of.count - 1);
      apply_(*this, {nullptr, dots + lane, to + lane, lanes, keys, of.b, of.h, queries, k, scale});
    }
  }

 private:
  const void* score_;
  void (*apply_)(const AnyScoreDerivative&, DerivativePatch<A>) = nullptr;
  void (*run_)(DerivativePatch<A>) = nullptr;
  Index width_ = 1;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
