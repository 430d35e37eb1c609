// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "../core/dual.hpp"
#include "activation.hpp"

/// What a backward pass needs of an activation.
namespace mha::inline MHA_NAMESPACE::detail {

/// A functor whose operator() is its own and whose derivative() is that of a base, and so of another function.
template <class F>
concept InheritsDerivative = !std::same_as<decltype(class_of_member(&F::template derivative<float>)),
                                           decltype(class_of_member(&F::template operator()<float>))>;

/// A function of one number that knows its derivative.
template <class F>
concept HasDerivative = !InheritsDerivative<F> && requires(const F& f, float x, double y) {
  { f.derivative(x) } -> std::convertible_to<float>;
  { f.derivative(y) } -> std::convertible_to<double>;
};
/// One that dual numbers differentiate.
template <class F>
concept TakesDual = requires(const F& f, const Dual<float>& x) {
  { f(x) } -> std::same_as<Dual<float>>;
};
template <class F> inline constexpr bool is_differentiable = HasDerivative<F> || TakesDual<F>;
template <class F> inline constexpr bool is_differentiable<Gated<F>> = HasDerivative<F> || TakesDual<F>;

/// Says what F lacks, where it is to be differentiated.
template <class F> constexpr bool check_differentiable() {
  static_assert(is_differentiable<F>,
                "mha: this activation cannot be differentiated: make the number of its operator() const a template "
                "parameter, or give it a member derivative(x) (see mha/policy/activation.hpp)");
  return is_differentiable<F>;
}

/// F′(x).
template <class F, class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S derivative_at(const F& f, const S& x) {
  if constexpr (HasDerivative<F>)
    return static_cast<S>(f.derivative(x));
  else
    return f(Dual<S>::variable(x)).derivative[0];
}

/// d · slope, and exactly 0 where d is 0, as in a padded row, whatever the slope.
template <class S> MHA_HOST_DEVICE MHA_ALWAYS_INLINE S gradient_times(const S& d, const S& slope) {
  if constexpr (Arithmetic<S>)
    return choose(d == S(0), S(0), d * slope);
  else
    return d * slope;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
