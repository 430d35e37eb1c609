// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../config.hpp"

/// exp and tanh that a compiler turns into vector code: no branches, no tables, no calls. Policies are evaluated in
/// loops over tiles of logits, where a call per logit would cost more than the attention around it. A CUDA device has
/// its own, as near.
namespace mha::inline v0::detail {

template <class T> struct MathConstants;
template <> struct MathConstants<float> {
  using Int = std::int32_t;
  static constexpr float round_to_int = 12582912.f;  // 1.5 · 2^23: adding it leaves the integer in the low bits
  static constexpr int mantissa_bits = 23, bias = 127;
  static constexpr float log2e = 1.44269504088896341f;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;  // high · n is exact
  static constexpr float lowest = -104.f, highest = 89.f;                     // beyond: 0 and ∞
  /// (e^r − 1 − r) / r² on [−ln 2 / 2, ln 2 / 2].
  static constexpr float exp_terms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                        4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  /// (tanh x − x) / x³ in x² for |x| < 0.625.
  static constexpr float tanh_above[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                         -3.33332819422e-1f};
  static constexpr float tanh_below[] = {1.f};
};
template <> struct MathConstants<double> {
  using Int = std::int64_t;
  static constexpr double round_to_int = 6755399441055744.;  // 1.5 · 2^52
  static constexpr int mantissa_bits = 52, bias = 1023;
  static constexpr double log2e = 1.44269504088896340736;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
  static constexpr double lowest = -746., highest = 710.;
  static constexpr double exp_terms[] = {1. / 6227020800, 1. / 479001600, 1. / 39916800, 1. / 3628800,
                                         1. / 362880,     1. / 40320,     1. / 5040,     1. / 720,
                                         1. / 120,        1. / 24,        1. / 6,        1. / 2};
  static constexpr double tanh_above[] = {-9.64399179425052238628e-1, -9.92877231001918586564e1,
                                          -1.61468768441708447952e3};
  static constexpr double tanh_below[] = {1., 1.12811678491632931402e2, 2.23548839060100448583e3,
                                          4.84406305325125486048e3};
};

/// The polynomial with these coefficients, the highest power first.
template <class T, std::size_t N> MHA_ALWAYS_INLINE constexpr T horner(const T (&terms)[N], T x) {
  T sum = terms[0];
  MHA_UNROLL_TERMS
  for (std::size_t i = 1; i < N; ++i) sum = sum * x + terms[i];
  return sum;
}

/// e^x.
///
/// Numerics  within 2 ulp, subnormal results included; exp(±0) = 1, exp(−∞) = +0, exp(∞) = ∞, NaN stays NaN
/// Source    Cody & Waite 1980, chapter 6; Moshier's Cephes
template <class T> MHA_ALWAYS_INLINE constexpr T exp_by_bits(T x) {
  using C = MathConstants<T>;
  using Int = typename C::Int;
  using Bits = std::make_unsigned_t<Int>;
  T y = x < C::lowest ? C::lowest : x;
  y = y > C::highest ? C::highest : y;
  const T shifted = y * C::log2e + C::round_to_int;
  const T n = shifted - C::round_to_int;
  const T r = (y - n * C::ln2_high) - n * C::ln2_low;
  const T p = horner(C::exp_terms, r) * (r * r) + r + T(1);
  // 2^n in two factors, because n may lie beyond the exponents of normal numbers.
  const Bits whole = std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(C::round_to_int);
  const Bits half = static_cast<Bits>(static_cast<Int>(whole) >> 1);
  const T first = std::bit_cast<T>(static_cast<Bits>((half + Bits{C::bias}) << C::mantissa_bits));
  const T second = std::bit_cast<T>(static_cast<Bits>((whole - half + Bits{C::bias}) << C::mantissa_bits));
  return p * first * second;
}

/// tanh x.
///
/// Numerics  within 3 ulp; odd, the sign of zero kept; tanh(±∞) = ±1, NaN stays NaN
/// Source    Moshier's Cephes
template <class T> MHA_ALWAYS_INLINE constexpr T tanh_by_bits(T x) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  constexpr Bits sign_bit = Bits{1} << (sizeof(T) * 8 - 1);
  const Bits sign = std::bit_cast<Bits>(x) & sign_bit;
  const T a = std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(x) & ~sign_bit)), square = a * a;
  const T fraction = std::is_same_v<T, float> ? horner(C::tanh_above, square)
                                              : horner(C::tanh_above, square) / horner(C::tanh_below, square);
  const T small = fraction * square * a + a;
  const T large = T(1) - T(2) / (exp_by_bits(a + a) + T(1));
  return std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(a < T(0.625) ? small : large) | sign));
}

}  // namespace mha::inline v0::detail

namespace mha::inline v0 {

template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

// The maths a score may use on numbers, of integers in double; core/dual.hpp has the same names for dual numbers.

namespace detail {
/// What the maths of an integer is computed in: a distance q − k has a logarithm that is none.
template <Arithmetic T> using Real = std::conditional_t<std::is_integral_v<T>, double, T>;
}  // namespace detail

template <Arithmetic T> MHA_HOST_DEVICE detail::Real<T> log(T x) { return std::log(static_cast<detail::Real<T>>(x)); }
template <Arithmetic T> MHA_HOST_DEVICE detail::Real<T> sqrt(T x) { return std::sqrt(static_cast<detail::Real<T>>(x)); }
template <Arithmetic T> MHA_HOST_DEVICE constexpr T abs(T x) { return x < T(0) ? -x : x; }

/// Within 2 ulp for float and double, in code that vectorises.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE detail::Real<T> exp(T x) {
  using R = detail::Real<T>;
#if MHA_ON_DEVICE
  return ::exp(static_cast<R>(x));
#else
  if constexpr (std::is_same_v<R, float> || std::is_same_v<R, double>)
    return detail::exp_by_bits(static_cast<R>(x));
  else
    return std::exp(x);
#endif
}
/// Within 3 ulp for float and double, in code that vectorises.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE detail::Real<T> tanh(T x) {
  using R = detail::Real<T>;
#if MHA_ON_DEVICE
  return ::tanh(static_cast<R>(x));
#else
  if constexpr (std::is_same_v<R, float> || std::is_same_v<R, double>)
    return detail::tanh_by_bits(static_cast<R>(x));
  else
    return std::tanh(x);
#endif
}

}  // namespace mha::inline v0
