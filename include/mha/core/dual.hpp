// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <type_traits>

#include "../config.hpp"
#include "math.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// x · y, and 0 if either is 0: what does not depend on a variable has the derivative 0 where it is infinite too, as
/// behind a bias of −∞.
template <class T> MHA_HOST_DEVICE MHA_ALWAYS_INLINE constexpr T slope_times(const T& x, const T& y) {
  if constexpr (Arithmetic<T>)
    return choose((x == T(0)) | (y == T(0)), T(0), x * y);
  else
    return x * y;  // of dual numbers, whose == compares the values alone
}

}  // namespace detail

/// A value and its derivatives with respect to N variables: evaluating a score on duals differentiates it.
///
/// Numbers convert to a Dual with zero derivatives; a Dual never converts back, because that would lose them silently.
/// Source    forward-mode automatic differentiation, Griewank & Walther, chapter 3
template <class T, int N = 1> struct Dual {
  T value{};
  T derivative[std::size_t{N}]{};

  Dual() = default;
  template <Arithmetic A> MHA_HOST_DEVICE constexpr Dual(A v) : value(static_cast<T>(v)) {}
  /// Of dual numbers, for second derivatives.
  MHA_HOST_DEVICE constexpr Dual(const T& v) requires(!Arithmetic<T>) : value(v) {}

  /// The i-th variable itself: its derivative with respect to itself is 1.
  MHA_HOST_DEVICE static constexpr Dual variable(T v, int i = 0) {
    Dual r(v);
    r.derivative[i] = T(1);
    return r;
  }
  /// f(x) from f's value and slope at x.
  MHA_HOST_DEVICE constexpr Dual chain(T f, T slope) const {
    Dual r(f);
    for (int i = 0; i < N; ++i) r.derivative[i] = detail::slope_times(slope, derivative[i]);
    return r;
  }

  friend MHA_HOST_DEVICE constexpr Dual operator-(const Dual& a) { return a.chain(-a.value, T(-1)); }
  friend MHA_HOST_DEVICE constexpr Dual operator+(const Dual& a, const Dual& b) {
    Dual r(a.value + b.value);
    for (int i = 0; i < N; ++i) r.derivative[i] = a.derivative[i] + b.derivative[i];
    return r;
  }
  friend MHA_HOST_DEVICE constexpr Dual operator-(const Dual& a, const Dual& b) {
    Dual r(a.value - b.value);
    for (int i = 0; i < N; ++i) r.derivative[i] = a.derivative[i] - b.derivative[i];
    return r;
  }
  friend MHA_HOST_DEVICE constexpr Dual operator*(const Dual& a, const Dual& b) {
    Dual r(a.value * b.value);
    for (int i = 0; i < N; ++i)
      r.derivative[i] = detail::slope_times(a.derivative[i], b.value) + detail::slope_times(a.value, b.derivative[i]);
    return r;
  }
  friend MHA_HOST_DEVICE constexpr Dual operator/(const Dual& a, const Dual& b) {
    Dual r(a.value / b.value);
    for (int i = 0; i < N; ++i)
      r.derivative[i] = (a.derivative[i] - detail::slope_times(r.value, b.derivative[i])) / b.value;
    return r;
  }
  // With a number, whose derivative is not multiplied.
  template <Arithmetic A> friend MHA_HOST_DEVICE constexpr Dual operator*(const Dual& a, A b) {
    return a.scaled(static_cast<T>(b));
  }
  template <Arithmetic A> friend MHA_HOST_DEVICE constexpr Dual operator*(A a, const Dual& b) {
    return b.scaled(static_cast<T>(a));
  }
  template <Arithmetic A> friend MHA_HOST_DEVICE constexpr Dual operator/(const Dual& a, A b) {
    Dual r(a.value / static_cast<T>(b));
    for (int i = 0; i < N; ++i) r.derivative[i] = a.derivative[i] / static_cast<T>(b);
    return r;
  }
  MHA_HOST_DEVICE constexpr Dual& operator+=(const Dual& b) { return *this = *this + b; }
  MHA_HOST_DEVICE constexpr Dual& operator-=(const Dual& b) { return *this = *this - b; }
  MHA_HOST_DEVICE constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }
  MHA_HOST_DEVICE constexpr Dual& operator/=(const Dual& b) { return *this = *this / b; }

  /// c times this.
  MHA_HOST_DEVICE constexpr Dual scaled(const T& c) const {
    Dual r(value * c);
    for (int i = 0; i < N; ++i) r.derivative[i] = derivative[i] * c;
    return r;
  }

  friend MHA_HOST_DEVICE constexpr bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend MHA_HOST_DEVICE constexpr bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend MHA_HOST_DEVICE constexpr bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }
  friend MHA_HOST_DEVICE constexpr bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
  friend MHA_HOST_DEVICE constexpr bool operator>=(const Dual& a, const Dual& b) { return a.value >= b.value; }
};

// The maths of core/math.hpp on duals: a score that uses these names is differentiated by them.

template <class T, int N> MHA_HOST_DEVICE Dual<T, N> exp(const Dual<T, N>& a) {
  const T e = mha::exp(a.value);
  return a.chain(e, e);
}
template <class T, int N> MHA_HOST_DEVICE Dual<T, N> log(const Dual<T, N>& a) {
  return a.chain(mha::log(a.value), T(1) / a.value);
}
template <class T, int N> MHA_HOST_DEVICE Dual<T, N> tanh(const Dual<T, N>& a) {
  const T t = mha::tanh(a.value);
  return a.chain(t, T(1) - t * t);
}
template <class T, int N> MHA_HOST_DEVICE Dual<T, N> sqrt(const Dual<T, N>& a) {
  const T r = mha::sqrt(a.value);
  return a.chain(r, T(1) / (T(2) * r));
}
template <class T, int N> MHA_HOST_DEVICE constexpr Dual<T, N> abs(const Dual<T, N>& a) {
  return a.value < T(0) ? -a : a;
}
template <class T, int N>
MHA_HOST_DEVICE constexpr Dual<T, N> max(const Dual<T, N>& a, const std::type_identity_t<Dual<T, N>>& b) {
  return a < b ? b : a;
}
template <class T, int N>
MHA_HOST_DEVICE constexpr Dual<T, N> min(const Dual<T, N>& a, const std::type_identity_t<Dual<T, N>>& b) {
  return b < a ? b : a;
}
template <class T, int N>
MHA_HOST_DEVICE constexpr Dual<T, N> select(bool c, const Dual<T, N>& a, const std::type_identity_t<Dual<T, N>>& b) {
  return c ? a : b;
}
template <class T, int N> MHA_HOST_DEVICE Dual<T, N> erf(const Dual<T, N>& a) {
  constexpr T slope_at_0 = static_cast<T>(1.12837916709551257390L);  // 2 / √π
  return a.chain(mha::erf(a.value), slope_at_0 * mha::exp(-a.value * a.value));
}
template <class T, int N> MHA_HOST_DEVICE Dual<T, N> normal_cdf(const Dual<T, N>& a) {
  constexpr T slope_at_0 = static_cast<T>(0.39894228040143267794L);  // 1 / √(2π)
  return a.chain(mha::normal_cdf(a.value), slope_at_0 * mha::exp(T(-0.5) * a.value * a.value));
}

}  // namespace mha::inline MHA_NAMESPACE

/// Limits are those of the value: infinity and the like have zero derivatives.
template <class T, int N> struct std::numeric_limits<mha::Dual<T, N>> : std::numeric_limits<T> {
  MHA_HOST_DEVICE static constexpr mha::Dual<T, N> infinity() {
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(__builtin_huge_val());  // a kernel may not call numeric_limits
    else
      return std::numeric_limits<T>::infinity();
  }
  static constexpr mha::Dual<T, N> lowest() { return std::numeric_limits<T>::lowest(); }
  static constexpr mha::Dual<T, N> max() { return std::numeric_limits<T>::max(); }
  static constexpr mha::Dual<T, N> min() { return std::numeric_limits<T>::min(); }
  static constexpr mha::Dual<T, N> epsilon() { return std::numeric_limits<T>::epsilon(); }
  static constexpr mha::Dual<T, N> quiet_NaN() { return std::numeric_limits<T>::quiet_NaN(); }
};
