// SPDX-License-Identifier: Apache-2.0
// What activations are compared with, and how far from it they may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace support {

// The formulas as their papers have them, in long double.
inline long double gelu(long double x) { return x * std::erfc(-x / std::sqrt(2.0L)) / 2; }
inline long double tanh_argument(long double x) {
  return std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x);
}
inline long double gelu_tanh(long double x) { return x / (1 + std::exp(-2 * tanh_argument(x))); }
inline long double silu(long double x) { return x / (1 + std::exp(-x)); }

/// |y − exact| in units of the last place of exact, none smaller than that of the least normal number.
template <class T> long double ulp_error(T y, long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
  return std::abs(static_cast<long double>(y) - exact) / std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
}

}  // namespace support
