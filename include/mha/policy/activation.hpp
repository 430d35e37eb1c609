// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <type_traits>

#include "../core/dual.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// A function of one number.
template <class F>
concept NumberFunctor = requires(const F& f, const float& x, const double& y) {
  { f(x) } -> std::convertible_to<float>;
  { f(y) } -> std::convertible_to<double>;
  requires !std::integral<std::remove_cvref_t<decltype(f(x))>>;
  requires !std::integral<std::remove_cvref_t<decltype(f(y))>>;
};

#if MHA_ON_DEVICE
template <class S> inline constexpr bool computes_by_bits = false;
#else
template <class S> inline constexpr bool computes_by_bits = std::is_same_v<S, float> || std::is_same_v<S, double>;
#endif

/// x Φ(x), without ∞ · 0.
template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S times_normal_cdf(const S& x) {
  if constexpr (computes_by_bits<S>)
    return times_normal_cdf_by_bits(x);
  else
    return mha::max(x, -1000) * mha::normal_cdf(x);  // Φ is 0 long before
}

/// x / (1 + e^−u) for u of the sign of x, without the difference of nearly equal numbers and without ∞ · 0.
template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S times_logistic(const S& x, const S& u) {
  if constexpr (computes_by_bits<S>) {
    return times_logistic_by_bits(x, u);
  } else {
    const S e = mha::exp(-mha::abs(u)), low = mha::max(x, -1000) * e;  // e is 0 long before
    return mha::select(u < S(0), low, x) / (S(1) + e);
  }
}

/// The derivative of x Φ(x).
template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S times_normal_cdf_slope(const S& x) {
  if constexpr (computes_by_bits<S>) {
    return times_normal_cdf_slope_by_bits(x);
  } else {
    constexpr double density_at_0 = 0.39894228040143267794;  // 1 / √(2π)
    const S near = mha::min(mha::max(x, -1000), 1000);       // the density is 0 long before
    return mha::normal_cdf(x) + near * (S(density_at_0) * mha::exp(S(-0.5) * near * near));
  }
}

/// The derivative of x / (1 + e^−u) by x for u of the sign of x, x_slope being x ∂u/∂x, finite.
template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S times_logistic_slope(const S& x_slope, const S& u) {
  if constexpr (computes_by_bits<S>) {
    return times_logistic_slope_by_bits(x_slope, u);
  } else {
    const S e = mha::exp(-mha::abs(u)), both = S(1) + e;
    return mha::select(u < S(0), e * (both + x_slope), both + x_slope * e) / (both * both);
  }
}

}  // namespace detail

/// y = x: no activation.
struct Identity {
  static constexpr const char* name = "none";
  template <class S> MHA_HOST_DEVICE constexpr S operator()(const S& x) const { return x; }
  template <class S> MHA_HOST_DEVICE constexpr S derivative(const S&) const { return S(1); }
};

// The activations map NaN to NaN, ∞ to ∞ and −∞ to 0. Errors in ulp are those of float and double, where the factor of
// x is a normal number; one below counts as 0. Derivatives, by which a backward pass multiplies, are 0 at −∞ and 1 at
// ∞; their errors are absolute, ε being 2⁻²³ in float and 2⁻⁵² in double.

/// max(x, 0).
///
/// Numerics  exact; −0 stays −0; the derivative at 0 is 0
struct Relu {
  static constexpr const char* name = "relu";
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S operator()(const S& x) const { return mha::max(x, 0); }
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S derivative(const S& x) const {
    return mha::select(x <= S(0), S(0), S(1));
  }
};

/// x Φ(x), Φ being the distribution function of the standard normal distribution.
///
/// Formula   ½ x (1 + erf(x / √2))
/// Numerics  within 7 ulp, also where 1 + erf would cancel; the derivative Φ(x) + x φ(x) within 2 ε. In an epilogue of
///           bfloat16 results on Cpu and Systolic within 2⁻¹⁴, relatively, before the result is rounded to its 8 bits
/// Source    Hendrycks & Gimpel 2016, Gaussian error linear units; PyTorch's nn.GELU()
struct Gelu {
  static constexpr const char* name = "gelu";
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S operator()(const S& x) const {
    return detail::times_normal_cdf(x);
  }
  /// The same where it is rounded to bfloat16 next: half the work.
  MHA_ALWAYS_INLINE float for_bfloat16(float x) const { return detail::times_normal_cdf_coarsely(x); }
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S derivative(const S& x) const {
    return detail::times_normal_cdf_slope(x);
  }
};

/// Gelu by way of tanh, as GPT-2 and BERT's first code have it.
///
/// Formula   ½ x (1 + tanh u) = x / (1 + e^(−2u)), u = √(2/π) (x + 0.044715 x³)
/// Numerics  within 8 + 10|u| ulp, also where 1 + tanh would cancel; the derivative within 8 ε; in an epilogue of
///           bfloat16 results as Gelu
/// Source    Hendrycks & Gimpel 2016; PyTorch's nn.GELU(approximate="tanh")
struct GeluTanh {
  static constexpr const char* name = "gelu_tanh";
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S operator()(const S& x) const {
    constexpr double slope = 1.59576912160573071176, cubic = slope * 0.044715;  // slope = 2 √(2/π)
    return detail::times_logistic(x, x * (S(slope) + S(cubic) * x * x));
  }
  MHA_ALWAYS_INLINE float for_bfloat16(float x) const {
    constexpr float slope = 2.3022082f, cubic = slope * 0.044715f;   // slope = 2 √(2/π) log2(e)
    const float a = detail::at_most(detail::magnitude(x), 10.037f);  // where e^(−2u) has no normal number left
    return detail::times_logistic_coarsely(x, a, a * (slope + cubic * a * a));
  }
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S derivative(const S& x) const {
    constexpr double slope = 1.59576912160573071176, cubic = slope * 0.044715;
    const S near = mha::min(mha::max(x, -100), 100), square = near * near;  // 0 or 1 long before
    return detail::times_logistic_slope(near * (S(slope) + S(3 * cubic) * square),
                                        near * (S(slope) + S(cubic) * square));
  }
};

/// x / (1 + e^−x), also called swish.
///
/// Numerics  within 4 ulp; the derivative within 3 ε; in an epilogue of bfloat16 results as Gelu
/// Source    Elfwing et al. 2017; Ramachandran et al. 2017
struct Silu {
  static constexpr const char* name = "silu";
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S operator()(const S& x) const {
    return detail::times_logistic(x, x);
  }
  MHA_ALWAYS_INLINE float for_bfloat16(float x) const {
    const float a = detail::at_most(detail::magnitude(x), 88.17f);  // where e^−x has no normal number left
    return detail::times_logistic_coarsely(x, a, a * detail::MathConstants<float>::log2e);
  }
  template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S derivative(const S& x) const {
    const S near = mha::min(mha::max(x, -1000), 1000);  // 0 or 1 long before
    return detail::times_logistic_slope(near, near);
  }
};

/// activation(x · gate) ∘ (x · weight): a pair of matrices whose results meet element by element.
///
/// Source    Shazeer 2020, GLU variants improve transformer
template <class F> struct Gated {
  static_assert(detail::NumberFunctor<F>,
                "mha: Gated<F> needs a function of one number: F's operator() const has to take a float and a double "
                "that it does not change, and to return a number that is no integer (see mha/policy/activation.hpp)");
  F activation{};
};

using SwiGlu = Gated<Silu>;
using GeGlu = Gated<Gelu>;

namespace detail {
template <class F> inline constexpr bool is_gated = false;
template <class F> inline constexpr bool is_gated<Gated<F>> = true;

/// "gelu", "functor", "gated silu"
template <class F> std::string activation_name() {
  if constexpr (is_gated<F>)
    return std::string("gated ") + policy_name<decltype(F::activation)>();
  else
    return policy_name<F>();
}
}  // namespace detail

/// What happens to each result of a product:
///   S operator()(const S& x) const
/// or Gated of such a functor.
///
/// Make the number a template parameter and use the maths of mha:: (abs, erf, exp, log, max, min, normal_cdf,
/// select, sqrt, tanh): a backward pass differentiates it by dual numbers, and without log and sqrt, which are calls
/// for each number, it runs as vector code at the instruction-set level chosen at run time. A result depends on its
/// number alone. Optional members:
///   static constexpr const char* name  what explain() calls it
///   S derivative(const S& x) const     instead of dual numbers; needed where the functor takes plain numbers only
///   float for_bfloat16(float x) const  instead of operator() where Cpu and Systolic round the result to bfloat16 next
///
/// Dual numbers give abs, max and min where they have a corner the slope of one side: max(x, 0) has slope 1 at 0.
///
/// A whole one, in the user's own code:
///   struct SquaredRelu {
///     template <class S> S operator()(const S& x) const { return mha::max(x, 0) * mha::max(x, 0); }
///   };
template <class F>
concept Activation = detail::is_gated<F> || detail::NumberFunctor<F>;

namespace detail {

/// Says what F lacks, where an activation is wanted.
template <class F> constexpr bool check_activation() {
  static_assert(Activation<F>,
                "mha: an activation is a function of one number: its operator() const has to take a float and a double "
                "that it does not change, and to return a number that is no integer (see mha/policy/activation.hpp)");
  return Activation<F>;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
