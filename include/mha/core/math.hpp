// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../config.hpp"

/// exp, log, tanh, erf and Φ that a compiler turns into vector code: no branches, tables or calls. Policies are
/// evaluated in loops over tiles, where a call per number would cost more than the work around it. A CUDA device has
/// its own.
namespace mha::inline MHA_NAMESPACE::detail {

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
  /// log(1 + z) is z − z² / 2 + z³ above / below for √½ ≤ 1 + z < √2.
  static constexpr float log_above[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                        -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                        2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  static constexpr float log_below[] = {1.f};
  /// Bits of a number that are left when its square is to be exact.
  static constexpr std::uint32_t short_mask = 0xfffff000u;
  static constexpr float tanh_end = 9.1f;           // from where on tanh is 1
  static constexpr float decay_end = 88.02969193f;  // 127 ln 2, where 2^n has no normal number left
  static constexpr float tail_end = 13.2687f;       // the root of twice that
  static constexpr float tail_scale = 4.f;
  /// (1 − Φ(a)) e^(a²/2) (a + s) in (a − s) / (a + s), s being tail_scale, for 0 ≤ a ≤ tail_end: within 1.3e-8.
  static constexpr float tail_terms[] = {-1.229831570e-4f, 1.948018511e-4f, 1.569313645e-3f,  -3.523574056e-3f,
                                         -7.527212912e-3f, 6.040646975e-2f, -1.865230059e-1f, 3.871366798e-1f,
                                         -6.078966061e-1f, 7.552851385e-1f};
  /// erf(x) / x in x² for |x| ≤ ½: within 1.4e-9.
  static constexpr float erf_terms[] = {4.719082567e-3f, -2.675773274e-2f, 1.128283143e-1f, -3.761260901e-1f,
                                        1.128379166f};
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
  static constexpr double log_above[] = {1.01875663804580931796e-4, 4.97494994976747001425e-1,
                                         4.70579119878881725854e0,  1.44989225341610930846e1,
                                         1.79368678507819816313e1,  7.70838733755885391666e0};
  static constexpr double log_below[] = {1.00000000000000000000e0, 1.12873587189167450590e1, 4.52279145837532221105e1,
                                         8.29875266912776603211e1, 7.11544750618563894466e1, 2.31251620126765340583e1};
  static constexpr std::uint64_t short_mask = 0xfffffffff8000000u;
  static constexpr double tanh_end = 19.1;
  static constexpr double decay_end = 709.0895657128241;
  static constexpr double tail_end = 37.6587;
  static constexpr double tail_scale = 4.;
  static constexpr double tail_terms[] = {
      // within 3.6e-17
      -9.653425420228504669e-10, 7.269545479026689456e-11, 1.392402399350171010e-8, 1.457859334703645972e-8,
      -7.638082053490450350e-8,  -1.542632053677107395e-7, 2.636824857640762506e-7, 1.019804851813517266e-6,
      -6.251321040478680193e-7,  -5.918892731763236447e-6, 7.150055959216098661e-7, 3.514418115776097273e-5,
      -1.907866531661357434e-6,  -2.310948183193762113e-4, 1.333442540190491162e-4, 1.630818441890359596e-3,
      -3.479692362242533344e-3,  -7.540188965593059021e-3, 6.039657489069946413e-2, -1.865218579596941633e-1,
      3.871374007422188786e-1,   -6.078966419718917589e-1, 7.552851304157514799e-1};
  static constexpr double erf_terms[] = {// within 4.1e-18
                                         1.472586548055674391e-6,  -1.484584925970786977e-5, 1.205333512435374075e-4,
                                         -8.548297753674966883e-4, 5.223977373021470017e-3,  -2.686617063288792935e-2,
                                         1.128379167092535315e-1,  -3.761263890318347354e-1, 1.128379167095512570};
};

/// c ? a : b without a branch: g++ would move what only one of both needs behind one, and a loop with it stays scalar.
template <class T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T choose(bool c, T a, T b) {
#if !MHA_ON_DEVICE
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const Bits mask = Bits{0} - Bits{c};
    return std::bit_cast<T>(static_cast<Bits>((std::bit_cast<Bits>(a) & mask) | (std::bit_cast<Bits>(b) & ~mask)));
  }
#endif
  return c ? a : b;
}

/// The polynomial with these coefficients, the highest power first.
template <class T, std::size_t N> MHA_ALWAYS_INLINE constexpr T horner(const T (&terms)[N], T x) {
  T sum = terms[0];
  MHA_UNROLL_TERMS
  for (std::size_t i = 1; i < N; ++i) sum = sum * x + terms[i];
  return sum;
}

/// e^r for |r| ≤ ln 2 / 2.
template <class T> MHA_ALWAYS_INLINE constexpr T exp_of_fraction(T r) {
  return horner(MathConstants<T>::exp_terms, r) * (r * r) + r + T(1);
}

/// e^x.
///
/// Numerics  within 2 ulp, subnormal results included; exp(±0) = 1, exp(−∞) = +0, exp(∞) = ∞, NaN stays NaN
/// Source    Cody & Waite 1980, chapter 6; Moshier's Cephes
template <class T> MHA_ALWAYS_INLINE constexpr T exp_by_bits(T x) {
  using C = MathConstants<T>;
  using Int = typename C::Int;
  using Bits = std::make_unsigned_t<Int>;
  T y = choose(x < C::lowest, C::lowest, x);
  y = choose(y > C::highest, C::highest, y);
  const T shifted = y * C::log2e + C::round_to_int;
  const T n = shifted - C::round_to_int;
  const T p = exp_of_fraction((y - n * C::ln2_high) - n * C::ln2_low);
  // 2^n in two factors, because n may lie beyond the exponents of normal numbers.
  const Bits whole = std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(C::round_to_int);
  const Bits half = static_cast<Bits>(static_cast<Int>(whole) >> 1);
  const T first = std::bit_cast<T>(static_cast<Bits>((half + Bits{C::bias}) << C::mantissa_bits));
  const T second = std::bit_cast<T>(static_cast<Bits>((whole - half + Bits{C::bias}) << C::mantissa_bits));
  return p * first * second;
}

/// ln x = n ln 2 + ln(1 + z), where x = 2^n (1 + z) and √½ ≤ 1 + z < √2.
///
/// Numerics  within 2 ulp, of subnormal x too; log(±0) = −∞, log(∞) = ∞, below 0 NaN, NaN stays NaN
/// Source    Moshier's Cephes
template <class T> MHA_ALWAYS_INLINE constexpr T log_by_bits(T x) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  constexpr T infinity = std::numeric_limits<T>::infinity(), not_a_number = std::numeric_limits<T>::quiet_NaN();
  constexpr Bits root_half = std::bit_cast<Bits>(static_cast<T>(0.70710678118654752440L));
  constexpr T whole = static_cast<T>(Bits{1} << C::mantissa_bits);  // a number below it in its mantissa is added
  const bool tiny = x < std::numeric_limits<T>::min();
  const Bits above = std::bit_cast<Bits>(choose(tiny, x * whole, x)) - root_half + std::bit_cast<Bits>(T(1));
  const T power = std::bit_cast<T>(static_cast<Bits>((above >> C::mantissa_bits) | std::bit_cast<Bits>(whole))) - whole;
  const T n = power - choose(tiny, T(C::bias + C::mantissa_bits), T(C::bias));
  const T z = std::bit_cast<T>(static_cast<Bits>((above & ((Bits{1} << C::mantissa_bits) - 1)) + root_half)) - T(1);
  const T square = z * z, rest = z * square * (horner(C::log_above, z) / horner(C::log_below, z));
  const T y = n * C::ln2_high + (z + ((rest + n * C::ln2_low) - T(0.5) * square));
  return choose(x >= T(0), choose(x == infinity, x, choose(x == T(0), -infinity, y)), not_a_number);
}

/// e^−(x + more) for 0 ≤ x ≤ decay_end, `more` being small: half the work of exp_by_bits().
///
/// Numerics  within 2 ulp; what is below the least normal number, or little above, is 0
template <class T> MHA_ALWAYS_INLINE constexpr T decay_by_bits(T x, T more) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  const T shifted = C::round_to_int - x * C::log2e;
  const T n = shifted - C::round_to_int;
  const T r = ((-x - n * C::ln2_high) - n * C::ln2_low) - more;
  const Bits exponent = std::bit_cast<Bits>(shifted) - (std::bit_cast<Bits>(C::round_to_int) - Bits{C::bias});
  return exp_of_fraction(r) * std::bit_cast<T>(static_cast<Bits>(exponent << C::mantissa_bits));
}

/// |x|.
template <class T> MHA_ALWAYS_INLINE constexpr T magnitude(T x) {
  using Bits = std::make_unsigned_t<typename MathConstants<T>::Int>;
  return std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(x) & (~Bits{0} >> 1)));
}

/// The smaller of both; a NaN in the first stays.
template <class T> MHA_ALWAYS_INLINE constexpr T at_most(T a, T limit) { return choose(a > limit, limit, a); }

/// tanh x = u / (2 − u), where u = 1 − e^(−2|x|) is taken apart so that nothing cancels where it is small.
///
/// Numerics  within 3 ulp; odd, the sign of zero kept; tanh(±∞) = ±1, NaN stays NaN
template <class T> MHA_ALWAYS_INLINE constexpr T tanh_by_bits(T x) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  constexpr Bits sign_bit = Bits{1} << (sizeof(T) * 8 - 1);
  const T a = at_most(magnitude(x), C::tanh_end), shifted = C::round_to_int - a * (2 * C::log2e);
  const T n = shifted - C::round_to_int;
  const T r = (T(-2) * a - n * C::ln2_high) - n * C::ln2_low;
  const Bits exponent = std::bit_cast<Bits>(shifted) - (std::bit_cast<Bits>(C::round_to_int) - Bits{C::bias});
  const T power = std::bit_cast<T>(static_cast<Bits>(exponent << C::mantissa_bits));
  const T u = (T(1) - power) - (horner(C::exp_terms, r) * (r * r) + r) * power;
  return std::bit_cast<T>(std::bit_cast<Bits>(u / (T(2) - u)) | (std::bit_cast<Bits>(x) & sign_bit));
}

/// e^(−x²/2) for 0 ≤ x ≤ tail_end, x as a short number, whose square is exact, and a rest.
///
/// Numerics  within 4 ulp; 0 at tail_end, where it falls below the least normal number; NaN stays NaN
template <class T> MHA_ALWAYS_INLINE constexpr T normal_decay_by_bits(T x) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  const T head = std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(x) & C::short_mask));
  return decay_by_bits(T(0.5) * head * head, T(0.5) * (x - head) * (x + head));
}

/// 1 − Φ(x) for 0 ≤ x ≤ tail_end, Φ being the distribution function of the standard normal distribution, from decay =
/// e^(−x²/2).
///
/// Formula   decay · p((x − s) / (x + s)) / (x + s)
/// Numerics  within 8 ulp; 0 at tail_end, where it falls below the least normal number; NaN stays NaN
/// Source    Shepherd & Laframboise 1981, Chebyshev approximation of (1 + 2x) exp(x²) erfc x
template <class T> MHA_ALWAYS_INLINE constexpr T normal_tail_by_bits(T x, T decay) {
  using C = MathConstants<T>;
  const T d = T(1) / (x + C::tail_scale);
  return decay * (horner(C::tail_terms, (x - C::tail_scale) * d) * d);
}
template <class T> MHA_ALWAYS_INLINE constexpr T normal_tail_by_bits(T x) {
  return normal_tail_by_bits(x, normal_decay_by_bits(x));
}

/// Φ(x).
template <class T> MHA_ALWAYS_INLINE constexpr T normal_cdf_by_bits(T x) {
  const T tail = normal_tail_by_bits(at_most(magnitude(x), MathConstants<T>::tail_end)), rest = T(1) - tail;
  return choose(x < T(0), tail, rest);
}

/// x Φ(x): max(x, 0) − |x| (1 − Φ(|x|)).
template <class T> MHA_ALWAYS_INLINE constexpr T times_normal_cdf_by_bits(T x) {
  const T a = at_most(magnitude(x), MathConstants<T>::tail_end);
  return choose(x > T(0), x, T(0)) - a * normal_tail_by_bits(a);
}

/// 2^q for −127.5 < q ≤ 0: within 2⁻¹⁸; what is below the least normal number is 0 or a subnormal number.
MHA_ALWAYS_INLINE constexpr float exp2_coarsely(float q) {
  using C = MathConstants<float>;
  constexpr float terms[] = {9.5701041e-3f, 5.5917904e-2f, 2.4024746e-1f, 6.9312179e-1f, 9.9999928e-1f};
  const float shifted = q + C::round_to_int, n = shifted - C::round_to_int;
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(shifted) - (std::bit_cast<std::uint32_t>(C::round_to_int) - std::uint32_t{C::bias});
  return horner(terms, q - n) * std::bit_cast<float>(exponent << C::mantissa_bits);
}

/// x Φ(x) for a result that is rounded to 8 bits: max(x, 0) − a 2^q(a), q being the logarithm of 1 − Φ for 0 ≤ a ≤ 13,
/// without a quotient.
///
/// Numerics  within 2⁻¹⁴ of the result, where the factor of x is a normal number; one below counts as 0
MHA_ALWAYS_INLINE constexpr float times_normal_cdf_coarsely(float x) {
  constexpr float end = 13.f;  // where 2^q has no normal number left
  constexpr float log2_tail[] = {-2.0123951e-9f, 1.4528773e-7f,  -4.6173263e-6f, 8.5530075e-5f, -1.0343975e-3f,
                                 8.7233121e-3f,  -5.4088883e-2f, -4.5863628e-1f, -1.1510510f,   -1.0000257f};
  const float a = at_most(magnitude(x), end);
  return choose(x > 0.f, x, 0.f) - a * exp2_coarsely(horner(log2_tail, a));
}

/// x / (1 + e^−u) for a result that is rounded to 8 bits, without a quotient: max(x, 0) − a e / (1 + e), e = 2^−v, v
/// being |u| log2(e), at most 127.4, for a = |x|.
///
/// Numerics  within 2⁻¹⁴ of the result for an exact v, where e is a normal number; one below counts as 0
MHA_ALWAYS_INLINE constexpr float times_logistic_coarsely(float x, float a, float v) {
  constexpr float inverse_terms[] = {7.1706772e-2f, -3.2268053e-1f, 6.6776949e-1f, -9.0305746e-1f,
                                     9.8540831e-1f, -9.9913341e-1f, 9.9999124e-1f};  // of 1 + e
  const float e = exp2_coarsely(-v);
  return choose(x > 0.f, x, 0.f) - a * (e * horner(inverse_terms, e));
}

/// Φ(x) + x φ(x), the derivative of x Φ(x): 1 − Φ(a) − a φ(a) at −a, 1 less that at a ≥ 0.
///
/// Numerics  within 2⁻²² in float and 2⁻⁵¹ in double; 0 at −∞, 1 at ∞, NaN stays NaN
template <class T> MHA_ALWAYS_INLINE constexpr T times_normal_cdf_slope_by_bits(T x) {
  constexpr T density_at_0 = static_cast<T>(0.39894228040143267794L);  // 1 / √(2π)
  const T a = at_most(magnitude(x), MathConstants<T>::tail_end), decay = normal_decay_by_bits(a);
  const T low = normal_tail_by_bits(a, decay) - density_at_0 * a * decay, high = T(1) - low;
  return choose(x < T(0), low, high);
}

/// x / (1 + e^−u) for u of the sign of x.
template <class T> MHA_ALWAYS_INLINE constexpr T times_logistic_by_bits(T x, T u) {
  using C = MathConstants<T>;
  const T e = decay_by_bits(at_most(magnitude(u), C::decay_end), T(0));
  return choose(u < T(0), -at_most(magnitude(x), C::decay_end) * e, x) / (T(1) + e);
}

/// The derivative of x / (1 + e^−u) by x for u of the sign of x, slope being that of u.
///
/// Formula   (1 + e + c e) / (1 + e)² for u ≥ 0, e (1 + e + c) / (1 + e)² for u < 0, where e = e^−|u| and c = x slope
template <class T> MHA_ALWAYS_INLINE constexpr T times_logistic_slope_by_bits(T x_slope, T u) {
  using C = MathConstants<T>;
  const T e = decay_by_bits(at_most(magnitude(u), C::decay_end), T(0)), inverse = T(1) / (T(1) + e);
  const T both = T(1) + e, low = e * (both + x_slope), high = both + x_slope * e;
  return choose(u < T(0), low, high) * inverse * inverse;
}

/// erf x.
///
/// Numerics  within 4 ulp; odd, the sign of zero kept; erf(±∞) = ±1, NaN stays NaN
template <class T> MHA_ALWAYS_INLINE constexpr T erf_by_bits(T x) {
  using C = MathConstants<T>;
  using Bits = std::make_unsigned_t<typename C::Int>;
  constexpr Bits sign_bit = Bits{1} << (sizeof(T) * 8 - 1);
  constexpr T root = static_cast<T>(1.41421356237309504880L);
  const T a = magnitude(x);
  const T small = horner(C::erf_terms, x * x) * x;
  const T tail = normal_tail_by_bits(at_most(root * a, C::tail_end)), rest = T(1) - (tail + tail);
  const T large = std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(rest) | (std::bit_cast<Bits>(x) & sign_bit)));
  return choose(a < T(0.5), small, large);
}

}  // namespace mha::inline MHA_NAMESPACE::detail

namespace mha::inline MHA_NAMESPACE {

/// A number of C++ itself: no dual number, half or bfloat16.
template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;

// The maths a score may use on numbers, of integers in double; core/dual.hpp has the same names for dual numbers.

namespace detail {
/// What the maths of T is computed in, double for integers: the logarithm of a distance q − k is not an integer.
template <Arithmetic T> using Real = std::conditional_t<std::is_integral_v<T>, double, T>;
}  // namespace detail

template <Arithmetic T> MHA_HOST_DEVICE detail::Real<T> sqrt(T x) { return std::sqrt(static_cast<detail::Real<T>>(x)); }
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T abs(T x) {
  return detail::choose(x < T(0), static_cast<T>(-x), x);
}

/// The larger, and the smaller, of two: a NaN in the first stays, one in the second is left out.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T max(T a, std::type_identity_t<T> b) {
  return detail::choose(a < b, b, a);
}
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T min(T a, std::type_identity_t<T> b) {
  return detail::choose(b < a, b, a);
}
/// c ? a : b, both computed: use it instead of a branch, which would keep a loop of the kernels scalar.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T select(bool c, T a, std::type_identity_t<T> b) {
  return detail::choose(c, a, b);
}

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
/// Within 2 ulp for float and double, in code that vectorises.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE detail::Real<T> log(T x) {
  using R = detail::Real<T>;
#if MHA_ON_DEVICE
  return ::log(static_cast<R>(x));
#else
  if constexpr (std::is_same_v<R, float> || std::is_same_v<R, double>)
    return detail::log_by_bits(static_cast<R>(x));
  else
    return std::log(x);
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

/// Within 4 ulp for float and double, in code that vectorises.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE detail::Real<T> erf(T x) {
  using R = detail::Real<T>;
#if MHA_ON_DEVICE
  return ::erf(static_cast<R>(x));
#else
  if constexpr (std::is_same_v<R, float> || std::is_same_v<R, double>)
    return detail::erf_by_bits(static_cast<R>(x));
  else
    return std::erf(x);
#endif
}
/// The distribution function of the standard normal distribution, ½ erfc(−x / √2): within 8 ulp for float and double,
/// and 0 below the least normal number, in code that vectorises.
template <Arithmetic T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE detail::Real<T> normal_cdf(T x) {
  using R = detail::Real<T>;
#if MHA_ON_DEVICE
  return ::normcdf(static_cast<R>(x));
#else
  if constexpr (std::is_same_v<R, float> || std::is_same_v<R, double>)
    return detail::normal_cdf_by_bits(static_cast<R>(x));
  else
    return std::erfc(-x / std::sqrt(R(2))) / 2;
#endif
}

}  // namespace mha::inline MHA_NAMESPACE
