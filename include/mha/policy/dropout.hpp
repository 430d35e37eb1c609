// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "../core/check.hpp"
#include "../core/philox.hpp"
#include "call_shape.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// No weight is dropped: the default.
struct NoDropout {
  static constexpr Role role = Role::dropout;
  static constexpr const char* name = "none";
};

/// In calls with a DropoutSeed, and in no other, each weight of the softmax is dropped with the probability p, the
/// others are multiplied by 1 / (1 − p). Of a Linear or a FeedForward, the elements of the result.
///
///   mha::attention(q, k, v, mha::Causal{}, mha::Dropout{.p = 0.1f}, mha::DropoutSeed{7, step});
///
/// Formula   out_i = Σ_k keeps(i, k) / (1 − p) · weight_ik v_k; see dropout_keeps()
/// Numerics  of a row's denominator, its log-sum-exp and the Sink nothing is dropped; p is rounded to a multiple of
///           2⁻³²; p = 0 changes no bit. A dropped key is visible: a NaN in it reaches the row
/// Errors    ShapeError if p is not in [0, 1)
/// Source    Srivastava et al. 2014; Vaswani et al. 2017, §5.4
struct Dropout {
  static constexpr Role role = Role::dropout;
  static constexpr const char* name = "Dropout";
  Required<float> p;
};

/// Whether weights of the softmax are dropped in training.
template <class P>
concept DropoutPolicy = std::same_as<P, Dropout> || std::same_as<P, NoDropout>;

namespace detail {

/// The offset of a DropoutSeed has 32 bits: of more, calls that differ in the others would drop the same.
template <std::integral Offset> constexpr std::uint32_t dropout_offset(Offset offset) {
  if (!std::in_range<std::uint32_t>(offset))
    fail("DropoutSeed: the offset is ", offset, ", it must be at least 0 and below 4294967296");
  return static_cast<std::uint32_t>(offset);
}

}  // namespace detail

/// What a call with Dropout drops: other places for every seed and every offset. Of a model the layer or block number i
/// takes DropoutSeed{seed + i, step}: two that take the same, such as an attention layer and a Linear, drop the same
/// places. The backward pass of attention() is given the same one again; the tape of a layer or of a block keeps it.
///
/// Errors    ShapeError if the offset is negative or has more than 32 bits
struct DropoutSeed {
  std::uint64_t seed;
  std::uint32_t offset;

  template <std::integral Seed, std::integral Offset = std::uint32_t>
  constexpr explicit DropoutSeed(Seed of_all, Offset of_call = 0)
      : seed(static_cast<std::uint64_t>(of_all)), offset(detail::dropout_offset(of_call)) {}
  friend constexpr bool operator==(const DropoutSeed&, const DropoutSeed&) = default;
};

/// The random numbers of a call's pairs, one word each: those of keys 4j … 4j + 3 of a query head's row are
/// philox4x32<7>({j, q, b·Hq + h, offset}, seed). A weight is kept if its word is `threshold` = round(p · 2³²) at
/// least.
struct DropoutDraws {
  std::uint64_t seed = 0;
  std::uint32_t offset = 0, threshold = 0;
  double scale = 1;  ///< of what is kept

  /// Whether any weight may be dropped.
  MHA_HOST_DEVICE constexpr bool exist() const { return threshold > 0; }
  MHA_HOST_DEVICE constexpr PhiloxWords words(std::uint32_t row, Index q, Index block) const {
    return philox4x32({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(q), row, offset}}, seed);
  }
  /// What the weight of a pair is multiplied by: 0, or `scale`; `row` is b·Hq + h.
  MHA_HOST_DEVICE constexpr double factor(std::uint32_t row, Index q, Index k) const {
    const PhiloxWords four = words(row, q, k / 4);
    const std::uint32_t even = k % 4 == 0 ? four.word[0] : four.word[2], odd = k % 4 == 1 ? four.word[1] : four.word[3];
    return (k % 2 == 0 ? even : odd) >= threshold ? scale : 0;  // no array that a GPU would keep in memory
  }
  friend constexpr bool operator==(const DropoutDraws&, const DropoutDraws&) = default;
};

namespace detail {

/// The row b·Hq + h of a head's random numbers.
MHA_HOST_DEVICE constexpr std::uint32_t dropout_row(const CallShape& shape, Index b, Index h) {
  return static_cast<std::uint32_t>(b) * static_cast<std::uint32_t>(shape.heads) + static_cast<std::uint32_t>(h);
}

constexpr double probability(const NoDropout&) { return 0; }
constexpr double probability(const Dropout& dropout) { return static_cast<double>(dropout.p); }

constexpr void require_probability(const char* call, double p) {
  if (!(p >= 0 && p < 1)) fail(call, ": Dropout has p ", p, ", it must be at least 0 and below 1");
}

/// Those of a call with this p; none without a seed.
constexpr DropoutDraws dropout_draws(double p, const std::optional<DropoutSeed>& seed) {
  constexpr double words = 4294967296.;
  if (!seed || !(p > 0)) return {};
  const auto threshold = static_cast<std::uint32_t>(p * words + 0.5);  // of a float below 1 at most 2³² − 2⁸
  if (threshold == 0) return {};
  return {seed->seed, seed->offset, threshold, 1 / (1 - p)};
}

}  // namespace detail

/// Whether a call keeps the weight of query q and key k of query head h in sequence b, on every backend; a Linear's
/// element (b, l, j) is kept as the weight of key j is for query l of an only head.
///
/// Units     q and k are positions as masks get them: query row i stands at the call's Origin + i, so that a row has
///           its draws whichever rows are computed beside it. `heads` is the call's Hq
/// Errors    ShapeError if p is not in [0, 1)
constexpr bool dropout_keeps(const Dropout& dropout, const DropoutSeed& seed, Index heads, Index b, Index h, Index q,
                             Index k) {
  CallShape shape;
  shape.heads = heads;
  const double p = detail::probability(dropout);
  detail::require_probability("dropout_keeps", p);
  const DropoutDraws draws = detail::dropout_draws(p, seed);
  return draws.factor(detail::dropout_row(shape, b, h), q, k) != 0;
}

}  // namespace mha::inline MHA_NAMESPACE
