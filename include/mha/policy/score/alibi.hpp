// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "../score.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Attention with linear biases: far keys lose, at a rate that is each head's own.
///
/// Formula   s − slope_h · |q − k|;  with n the largest power of two ≤ Hq:  slope_h = 2^(−8(h+1)/n) for h < n,
///           else 2^(−4(2(h−n)+1)/n)
/// Numerics  slopes are computed in double and rounded to the logit's scalar
/// Source    Press et al. 2022, §3; the rule for other head counts is that of their published code
struct Alibi {
  static constexpr Role role = Role::score;
  static constexpr const char* name = "Alibi";
  static constexpr bool additive = true;
  Index heads = 0;  ///< set by prepared()

  /// Slope of head h of `heads`.
  MHA_HOST_DEVICE static double slope(Index h, Index heads) {
    Index n = 1;
    while (n <= heads / 2) n *= 2;
    return h < n ? std::exp2(-8.0 * (h + 1) / n) : std::exp2(-4.0 * (2 * (h - n) + 1) / n);
  }

  /// One head's bias.
  struct OfHead {
    static constexpr Role role = Role::score;
    double slope;
    template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index, Index, Index q, Index k) const {
      return s - static_cast<T>(slope) * static_cast<T>(mha::abs(q - k));
    }
  };

  MHA_HOST_DEVICE OfHead at_head(Index, Index h) const { return {slope(h, heads)}; }

  template <class T> MHA_HOST_DEVICE T operator()(T s, Index b, Index h, Index q, Index k) const {
    return at_head(b, h)(s, b, h, q, k);
  }
  constexpr Alibi prepared(const CallShape& s) const { return {s.heads}; }
};

}  // namespace mha::inline MHA_NAMESPACE
