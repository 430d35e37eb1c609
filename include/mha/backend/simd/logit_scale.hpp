// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numbers>

#include "../../config.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// What stands in a tile of a call, whose policies have lost their types, and how differences of it become weights.
///
/// Formula   exp(s − s′) = 2^((t − t′) slope), where t is the tile's number for the logit s
/// Numerics  without a score and with least ≤ scale ≤ 1 a tile has the unscaled dot products, and the scale is part of
///           the slope; else it has logits. Differences are taken before the multiplication by log2(e), so that a large
///           finite logit stays one
template <class A> class LogitScale {
  static constexpr A log2e = std::numbers::log2e_v<A>;
  /// Where a difference of dot products overflows, that of the logits is far beyond the least weight.
  static constexpr A least = A(1e-30);

 public:
  template <class Call>
  explicit LogitScale(const Call& call)
      : scale_(call.scale),
        dots_(!call.score.exists && call.scale >= least && call.scale <= A(1)),
        slope_(dots_ ? call.scale * log2e : log2e) {}

  /// Whether a tile has the dot products themselves.
  bool dots() const { return dots_; }
  A slope() const { return slope_; }

  /// The logit of a tile's number: rounded, and not part of a fused operation in those programs whose flags allow one.
  A logit(A of) const {
    A x = dots_ ? of * scale_ : of;
    round_here(x);
    return x;
  }

  /// What a row is divided by: its sum of weights relative to `level`, a tile's number, and the sink's.
  A with_sink(A sum, A level, A sink) const { return sum + std::exp2((sink - logit(level)) * log2e); }

 private:
  A scale_;
  bool dots_;
  A slope_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
