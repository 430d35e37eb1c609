// SPDX-License-Identifier: Apache-2.0
// Poisoned outputs, bit comparison, and errors measured against a bound.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>

#include <mha/config.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>

namespace support {

template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

template <class T> Bits<T> bits(T x) { return std::bit_cast<Bits<T>>(x); }

/// A NaN that no computation makes: what outputs, and memory that nobody may read or write, are filled with.
template <class T> T poison() {
  if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(std::uint64_t{0x7ff8dead0000beef});
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(std::uint32_t{0x7fc0beef});
  else if constexpr (std::is_same_v<T, mha::half>)
    return mha::half::from_bits(0x7e5a);
  else if constexpr (std::is_same_v<T, mha::scaled_int8> || std::is_same_v<T, mha::scaled_int4>)
    return std::bit_cast<T>(std::int8_t{-1});  // as a scale all ones, a NaN
  else
    return mha::bfloat16::from_bits(0x7fda);
}

template <class Container> void poison_all(Container& to) {
  for (auto& x : to) x = poison<std::remove_reference_t<decltype(x)>>();
}

template <class T> double to_double(T x) { return static_cast<double>(static_cast<mha::Accumulator<T>>(x)); }

/// ⟨a, b⟩.
template <class A, class B> double inner(const A& a, const B& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += to_double(a.data()[i]) * to_double(b.data()[i]);
  return sum;
}

/// How many elements differ in at least one bit; containers of different sizes differ in all.
template <class Container> std::size_t differing(const Container& a, const Container& b) {
  if (a.size() != b.size()) return a.size() + b.size();
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (bits(a.data()[i]) != bits(b.data()[i])) ++n;
  return n;
}

/// The larger of the two. A NaN stays, as in the maximum of IEEE 754-2019, where std::max and std::fmax lose it.
template <class T> T maximum(T a, T b) { return a > b || a != a ? a : b; }

/// Largest |a − b| over two containers, NaN if an element is; those of different sizes are infinitely far apart.
template <class A, class B> double largest_difference(const A& a, const B& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = to_double(a.data()[i]), y = to_double(b.data()[i]);
    if (x != y) largest = maximum(largest, std::abs(x - y));  // infinities may be equal
  }
  return largest;
}

/// Half a unit in the last place of 1: the relative error of one rounding.
template <class T> constexpr double unit_roundoff() {
  if constexpr (std::is_same_v<T, mha::half>)
    return 0x1p-11;
  else if constexpr (std::is_same_v<T, mha::bfloat16>)
    return 0x1p-8;
  else
    return static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;
}

/// What rounding a result to its storage scalar may add.
template <class T> double storage_error(double value) {
  if constexpr (std::is_same_v<T, mha::Accumulator<T>>) return 0;
  return unit_roundoff<T>() * std::abs(value) + (std::is_same_v<T, mha::half> ? 0x1p-25 : 0);
}

/// The worst |value − expected| / bound seen; above 1 is a failure. NaN and infinities must be met exactly.
class Worst {
 public:
  void see(double value, double expected, double bound, std::initializer_list<mha::Index> place) {
    see(value, expected, bound, [&] {
      std::string text;
      for (const mha::Index i : place) text.append(text.empty() ? "(" : ", ").append(std::to_string(i));
      return text.append(")");
    });
  }
  void see(double value, double expected, double bound, const std::string& place) {
    see(value, expected, bound, [&] { return place; });
  }
  double error() const { return error_; }
  const std::string& text() const { return text_; }

 private:
  /// Few numbers are worse than all before them: only their places are written.
  template <class Place>
  requires std::is_invocable_v<Place>
  void see(double value, double expected, double bound, const Place& place) {
    double error = 0;
    if (std::isnan(expected) || std::isinf(expected) || !std::isfinite(value))
      error = value == expected || (std::isnan(value) && std::isnan(expected))
                  ? 0
                  : std::numeric_limits<double>::infinity();
    else if (value != expected)
      error = std::abs(value - expected) / bound;
    if (!(error <= error_)) {
      error_ = error;
      text_ = place() + ": " + std::to_string(value) + " instead of " + std::to_string(expected) + ", bound " +
              std::to_string(bound);
    }
  }

  double error_ = 0;
  std::string text_ = "nothing differs";
};

}  // namespace support
