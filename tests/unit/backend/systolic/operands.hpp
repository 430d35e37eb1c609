// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <random.hpp>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>

namespace unit {

/// What a random operand is made of: values of one size, or what arithmetic has special rules for.
enum class Operands : int {
  normal,     ///< around 1
  wide,       ///< sizes from 1e-4 to 1e4, so that sums cancel and absorb
  any_bits,   ///< all numbers, infinities and NaNs
  tiny,       ///< products around the smallest normal number
  huge,       ///< products around the largest number
  subnormal,  ///< operands around the smallest normal number, among ordinary ones
  zeros,      ///< mostly zeros of both signs
};
inline constexpr Operands all_operands[] = {Operands::normal, Operands::wide,      Operands::any_bits, Operands::tiny,
                                            Operands::huge,   Operands::subnormal, Operands::zeros};

constexpr const char* to_string(Operands kind) {
  constexpr const char* names[] = {"normal", "wide", "any_bits", "tiny", "huge", "subnormal", "zeros"};
  return names[static_cast<int>(kind)];
}

inline mha::bfloat16 operand(Operands kind, support::Random& random) {
  const auto bits = static_cast<std::uint32_t>(random.engine()());
  const auto of_exponent = [&](int exponent) {
    return mha::bfloat16::from_bits(
        static_cast<std::uint16_t>((bits & 0x807fu) | static_cast<std::uint32_t>(exponent) << 7));
  };
  const double x = random.normal();
  switch (kind) {
    case Operands::normal:
      return mha::bfloat16(static_cast<float>(x));
    case Operands::wide:
      return mha::bfloat16(static_cast<float>(x * std::pow(10.0, random.uniform(-4, 4))));
    case Operands::any_bits:
      return mha::bfloat16::from_bits(static_cast<std::uint16_t>(bits));
    case Operands::tiny:
      return of_exponent(127 - 66 + random.below(6));
    case Operands::huge:
      return of_exponent(127 + 61 + random.below(4));
    case Operands::subnormal:
      return random.chance(0.5) ? of_exponent(random.below(3)) : mha::bfloat16(static_cast<float>(x));
    case Operands::zeros:
      break;
  }
  return random.chance(0.8) ? mha::bfloat16(random.chance(0.5) ? -0.f : 0.f) : mha::bfloat16(static_cast<float>(x));
}

inline mha::Tensor<mha::bfloat16, 2> operands(Operands kind, mha::Index rows, mha::Index columns,
                                              support::Random& random) {
  mha::Tensor<mha::bfloat16, 2> t(rows, columns);
  for (auto& x : t) x = operand(kind, random);
  return t;
}

/// How many floats differ in a bit; all NaNs are one.
template <class Container> std::size_t differing_floats(const Container& a, const Container& b) {
  if (a.size() != b.size()) return a.size() + b.size();
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<float>(a.data()[i]), y = static_cast<float>(b.data()[i]);
    if (std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y) && !(std::isnan(x) && std::isnan(y))) ++n;
  }
  return n;
}

}  // namespace unit
