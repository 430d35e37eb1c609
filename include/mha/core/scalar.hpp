// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// bfloat16 storage: the upper half of a float32. Arithmetic is done in float; conversion rounds to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  MHA_HOST_DEVICE explicit constexpr bfloat16(float x) {
    const auto w = __builtin_bit_cast(std::uint32_t, x);
    // A NaN keeps its upper bits and stays one even if only lower bits were set.
    bits = x != x ? static_cast<std::uint16_t>((w >> 16) | 0x40u)
                  : static_cast<std::uint16_t>((w + 0x7fffu + ((w >> 16) & 1u)) >> 16);
  }
  MHA_HOST_DEVICE constexpr operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  MHA_HOST_DEVICE static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 x;
    x.bits = b;
    return x;
  }
};

/// IEEE 754 binary16 storage. Arithmetic is done in float; conversion rounds to nearest even, subnormals included.
struct half {
  std::uint16_t bits = 0;

  half() = default;
  MHA_HOST_DEVICE explicit constexpr half(float x) {
    const auto w = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t sign = (w >> 16) & 0x8000u, magnitude = w & 0x7fffffffu;
    std::uint32_t r;
    if (magnitude > 0x7f800000u) {
      r = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN keeps what fits of its payload
    } else if (magnitude >= 0x47800000u) {
      r = 0x7c00u;  // 65536 and above, infinity included
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 → 15
      r = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;  // may carry into infinity, as it should
    } else {
      // Subnormal: adding 0.5 leaves the value's multiple of 2^-24, correctly rounded, in the low bits of the sum.
      const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
      r = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u;
    }
    bits = static_cast<std::uint16_t>(sign | r);
  }
  MHA_HOST_DEVICE constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + 0x38000000u));
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  MHA_HOST_DEVICE static constexpr half from_bits(std::uint16_t b) {
    half x;
    x.bits = b;
    return x;
  }
};

/// A number of a row that is stored in 8 bits: an integer from −127 to 127, to be multiplied by the scale of its row,
/// which it does not know. Rows are read and written by mha/core/stored_row.hpp.
struct scaled_int8 {
  std::int8_t integer;

  scaled_int8() = default;  // and no other: scaled_int8(0.5f) would initialise an aggregate
};

/// Two weights in 4 bits, one in the lower half of the byte and the next in the upper one: integers from −8 to 7, to be
/// multiplied by a scale that neighbours share. Parts of a block keep their matrices so: quantize<scaled_int4>().
struct scaled_int4 {
  std::uint8_t pair;

  scaled_int4() = default;
};

/// What a scalar is accumulated in; specialise it for a storage scalar of your own.
template <class T> struct ScalarTraits { using Accumulator = T; };
template <> struct ScalarTraits<half> { using Accumulator = float; };
template <> struct ScalarTraits<bfloat16> { using Accumulator = float; };
template <> struct ScalarTraits<scaled_int8> { using Accumulator = float; };
template <> struct ScalarTraits<scaled_int4> { using Accumulator = float; };

/// float for scaled_int4, scaled_int8, half, bfloat16 and float; the scalar itself otherwise.
template <class T> using Accumulator = typename ScalarTraits<std::remove_cv_t<T>>::Accumulator;

namespace detail {
/// Whether T is integers with a scale elsewhere, in which nothing is computed.
template <class T>
inline constexpr bool is_scaled_integer = std::same_as<T, scaled_int8> || std::same_as<T, scaled_int4>;
/// Whether queries of T may meet keys and values that are stored in F.
template <class T, class F>
inline constexpr bool meets_rows_of = std::same_as<Accumulator<T>, Accumulator<F>> && !std::same_as<F, scaled_int4>;
}  // namespace detail

/// −∞ of a scalar: what a hidden logit is.
template <class T> MHA_HOST_DEVICE constexpr T minus_infinity() {
  static_assert(std::numeric_limits<T>::has_infinity,
                "mha: this scalar has no infinity, so hidden logits cannot be written in it: "
                "specialise std::numeric_limits (see mha/core/scalar.hpp)");
  if constexpr (std::floating_point<T>)
    return static_cast<T>(-__builtin_huge_val());  // a kernel may not call numeric_limits
  else
    return -std::numeric_limits<T>::infinity();
}

namespace detail {

template <class T> constexpr const char* scalar_name() {
  if constexpr (std::same_as<T, float>)
    return "float";
  else if constexpr (std::same_as<T, double>)
    return "double";
  else if constexpr (std::same_as<T, half>)
    return "half";
  else if constexpr (std::same_as<T, bfloat16>)
    return "bfloat16";
  else if constexpr (std::same_as<T, scaled_int8>)
    return "scaled_int8";
  else if constexpr (std::same_as<T, scaled_int4>)
    return "scaled_int4";
  else
    return "user scalar";
}

}  // namespace detail

/// What sums over many rows are added in: double for float.
template <class A> using LongSum = std::conditional_t<std::is_same_v<A, float>, double, A>;

}  // namespace mha::inline MHA_NAMESPACE

/// As of any scalar, so that a table of bfloat16 or half may be filled with minus infinity.
template <> struct std::numeric_limits<mha::bfloat16> : std::numeric_limits<float> {
  static constexpr bool is_iec559 = false;
  static constexpr int digits = 8, digits10 = 2, max_digits10 = 4;
  static constexpr mha::bfloat16 min() { return mha::bfloat16::from_bits(0x0080); }
  static constexpr mha::bfloat16 max() { return mha::bfloat16::from_bits(0x7f7f); }
  static constexpr mha::bfloat16 lowest() { return mha::bfloat16::from_bits(0xff7f); }
  static constexpr mha::bfloat16 epsilon() { return mha::bfloat16::from_bits(0x3c00); }
  static constexpr mha::bfloat16 round_error() { return mha::bfloat16::from_bits(0x3f00); }
  static constexpr mha::bfloat16 infinity() { return mha::bfloat16::from_bits(0x7f80); }
  static constexpr mha::bfloat16 quiet_NaN() { return mha::bfloat16::from_bits(0x7fc0); }
  static constexpr mha::bfloat16 signaling_NaN() { return mha::bfloat16::from_bits(0x7fa0); }
  static constexpr mha::bfloat16 denorm_min() { return mha::bfloat16::from_bits(0x0001); }
};
template <> struct std::numeric_limits<mha::half> : std::numeric_limits<float> {
  static constexpr int digits = 11, digits10 = 3, max_digits10 = 5;
  static constexpr int min_exponent = -13, min_exponent10 = -4, max_exponent = 16, max_exponent10 = 4;
  static constexpr mha::half min() { return mha::half::from_bits(0x0400); }
  static constexpr mha::half max() { return mha::half::from_bits(0x7bff); }
  static constexpr mha::half lowest() { return mha::half::from_bits(0xfbff); }
  static constexpr mha::half epsilon() { return mha::half::from_bits(0x1400); }
  static constexpr mha::half round_error() { return mha::half::from_bits(0x3800); }
  static constexpr mha::half infinity() { return mha::half::from_bits(0x7c00); }
  static constexpr mha::half quiet_NaN() { return mha::half::from_bits(0x7e00); }
  static constexpr mha::half signaling_NaN() { return mha::half::from_bits(0x7d00); }
  static constexpr mha::half denorm_min() { return mha::half::from_bits(0x0001); }
};
