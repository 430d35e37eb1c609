// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "../config.hpp"
#include "scalar.hpp"
#include "stored_row.hpp"

/// How weights of a matrix become integers of 8 or 4 bits.
namespace mha::inline MHA_NAMESPACE {

/// Rows of a matrix (in, out) of weights in Q whose numbers in a column share a scale.
template <class Q> inline constexpr Index weights_per_scale = 0;
template <> inline constexpr Index weights_per_scale<scaled_int8> = 256;
template <> inline constexpr Index weights_per_scale<scaled_int4> = 32;

namespace detail {

/// Whether weights are stored in Q by quantize().
template <class Q> inline constexpr bool is_rounded = weights_per_scale<Q> != 0;

/// How a scale is stored.
template <class Q> using WeightScale = std::conditional_t<std::is_same_v<Q, scaled_int4>, bfloat16, float>;

/// Bytes that a weight takes in S, its share of a scale among them.
template <class S> constexpr double bytes_of_weight() {
  if constexpr (is_rounded<S>)
    return (std::is_same_v<S, scaled_int4> ? 0.5 : 1.0) + double(sizeof(WeightScale<S>)) / weights_per_scale<S>;
  else
    return sizeof(S);
}

/// The one of two numbers that is farther from 0, of equals the first; NaN is beyond infinity.
inline float farther(float a, float b) { return magnitude_bits(b) > magnitude_bits(a) ? b : a; }

/// The scale of integers of Q, and how numbers become such integers, of which none is farther from 0 than a given one.
template <class Q> struct WeightRounding : EightBits {
  explicit WeightRounding(float farthest = 0) : EightBits(magnitude_bits(farthest)) {}
  std::int8_t integer(float number) const { return EightBits::integer(number, factor); }
};

/// The farthest is −8 times the scale, which has its own sign for that.
template <> struct WeightRounding<scaled_int4> {
  float scale;  ///< a bfloat16's number

  explicit WeightRounding(float farthest = 0) {
    constexpr float least = 1e-20f, most = 0x1.fep127f;  // kernels multiply the scale by 2⁻²⁸; a bfloat16's
    const bool finite = magnitude_bits(farthest) < 0x7f800000u;
    const float end = std::abs(farthest) < least ? 0.0f : std::clamp(farthest, -most, most);
    scale = finite ? float(bfloat16(end / -8)) : std::numeric_limits<float>::quiet_NaN();
  }
  /// The quotient is rounded to nearest even: in double it is exact where it is half-way between two integers.
  std::int8_t integer(float number) const {
    if (!(std::abs(scale) > 0)) return 0;
    return std::clamp(to_nearest(double(number) / double(scale)), std::int8_t{-8}, std::int8_t{7});
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
