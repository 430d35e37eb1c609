// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../config.hpp"
#include "scalar.hpp"

/// How a key or a value of one head lies in memory: its numbers one after another, those of scaled_int8 behind their
/// scale.
namespace mha::inline MHA_NAMESPACE {

/// Elements of T that lie before the first number of a row: those of a scaled_int8 row's scale, a float32 at any
/// address.
template <class T> inline constexpr Index row_lead = 0;
template <> inline constexpr Index row_lead<scaled_int8> = sizeof(float) / sizeof(scaled_int8);

/// Elements of T that a row of n numbers takes, its lead among them; none if n is 0.
template <class T> constexpr Index row_elements(Index n) { return n == 0 ? 0 : n + row_lead<T>; }

/// The scale of a row whose first number is at `row`.
MHA_HOST_DEVICE inline float row_scale(const scaled_int8* row) {
  float scale;
  std::memcpy(&scale, row - row_lead<scaled_int8>, sizeof scale);
  return scale;
}

namespace detail {

/// |x| as an integer, which is in the order of |x|, infinity and NaN above all.
inline std::uint32_t magnitude_bits(float x) {
  return __builtin_bit_cast(std::uint32_t, x) & std::uint32_t{0x7fffffff};
}
/// A number of magnitude 127 at most, rounded to the nearest even integer.
inline std::int8_t to_nearest(double x) {
  constexpr double bias = 0x1.8p52;  // the sum with it has the integer in its lower bits
  return static_cast<std::int8_t>(__builtin_bit_cast(std::int64_t, x + bias));
}

/// How numbers become integers of 8 bits with one scale.
struct EightBits {
  float scale;
  float factor;  ///< of a number, before it is rounded; 0 if all integers are 0

  /// Of numbers whose highest magnitude_bits() are these.
  explicit EightBits(std::uint32_t highest) {
    constexpr float least = 1e-30f, most = 3.4e38f;
    const float largest = std::min(__builtin_bit_cast(float, highest), most);
    const bool finite = highest < 0x7f800000u, zero = !finite || largest < least;
    scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0.0f : largest / 127.0f;
    factor = zero ? 0.0f : 127.0f / largest;
  }

  static std::int8_t integer(float number, float factor) {
    // In double the product is exact, so that a compiler may fuse it with a sum or not.
    return factor == 0.0f ? std::int8_t{0} : to_nearest(static_cast<double>(number) * static_cast<double>(factor));
  }
};

}  // namespace detail

/// Rounds n numbers, `stride` apart, to a row of scaled_int8 whose first number is to be at `to`, behind its scale.
///
/// Formula   scale = max |x| / 127, integer = x / scale, rounded to nearest even
/// Numerics  a number is changed by about max |x| / 254 at most. The row is NaN if one of its numbers is NaN or
///           infinite, and 0 if all are below 1e-30; numbers beyond 3.4e38 become 3.4e38
template <class T> void quantize_row(const T* from, Index n, scaled_int8* to, std::ptrdiff_t stride = 1) {
  if (n == 0) return;  // such a row takes no memory, for its scale neither
  const auto number = [&](Index i) { return static_cast<float>(from[i * stride]); };
  std::uint32_t highest = 0;
  for (Index i = 0; i < n; ++i) highest = std::max(highest, detail::magnitude_bits(number(i)));
  const detail::EightBits bits(highest);
  std::memcpy(static_cast<void*>(to - row_lead<scaled_int8>), &bits.scale, sizeof bits.scale);
  for (Index i = 0; i < n; ++i) to[i].integer = detail::EightBits::integer(number(i), bits.factor);
}

namespace detail {

/// Number i of a stored row, in A.
template <class A, class T> MHA_HOST_DEVICE A stored_number(const T* row, Index i) {
  if constexpr (std::is_same_v<T, scaled_int8>)
    return A(static_cast<float>(row[i].integer) * row_scale(row));
  else
    return A(row[i]);
}

}  // namespace detail

/// The n numbers of a row, as float.
inline void read_row(const scaled_int8* row, Index n, float* to) {
  for (Index i = 0; i < n; ++i) to[i] = detail::stored_number<float>(row, i);
}

}  // namespace mha::inline MHA_NAMESPACE
