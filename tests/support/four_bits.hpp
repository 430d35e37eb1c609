// SPDX-License-Identifier: Apache-2.0
// Matrices in 4 bits, and the numbers that they store; and both kinds of rounded weights by their scalar.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/view.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"

namespace support {

/// The number of 8 significant bits that is nearest to x, of two the one that ends in 0, and whose product with -8 is
/// a float.
inline double nearest_scale(double x) {
  constexpr double most = 0x1.fep124;
  int exponent = 0;
  const double digits = std::nearbyint(256 * std::frexp(x, &exponent));
  return std::clamp(std::ldexp(digits, exponent - 8), -most, most);
}

/// The numbers in T that quantize<scaled_int4>() makes of a matrix (in, out): of each column, 32 at a time, x becomes
/// s · integer, where s is -1/8 of the number that is farthest from 0, of equals the first one, in bfloat16, and
/// integer = x / s, rounded to nearest even, at most 7.
template <class T, class W> mha::Tensor<T, 2> rounded_to_four_bits(const mha::TensorView<const W, 2>& m) {
  const mha::Index depth = m.extent[0];
  mha::Tensor<T, 2> to(depth, m.extent[1]);
  const auto number = [&](mha::Index i, mha::Index j) { return to_double(static_cast<float>(m(i, j))); };
  for (mha::Index j = 0; j < m.extent[1]; ++j)
    for (mha::Index begin = 0; begin < depth; begin += 32) {
      const mha::Index end = std::min(depth, begin + 32);
      double farthest = 0;
      bool finite = true;
      for (mha::Index i = begin; i < end; ++i) {
        finite = finite && std::isfinite(number(i, j));
        if (std::abs(number(i, j)) > std::abs(farthest)) farthest = number(i, j);
      }
      const double s = nearest_scale(farthest / -8);
      for (mha::Index i = begin; i < end; ++i)
        if (!finite)
          to(i, j) = std::numeric_limits<T>::quiet_NaN();
        else if (std::abs(farthest) >= to_double(1e-20f))
          to(i, j) = static_cast<T>(static_cast<int>(std::clamp(std::nearbyint(number(i, j) / s), -8.0, 7.0)) * s);
    }
  return to;
}

/// What Q makes of them.
template <class Q, class T, class W> mha::Tensor<T, 2> rounded_weights(const mha::TensorView<const W, 2>& m) {
  if constexpr (std::is_same_v<Q, mha::scaled_int8>)
    return rounded_to_eight_bits<T>(m);
  else
    return rounded_to_four_bits<T>(m);
}

/// Bytes of rounded weights on Cpu: columns filled up to a multiple of 48, with their scales.
template <class Q> std::size_t rounded_bytes(mha::Index in, mha::Index out) {
  constexpr bool four = std::is_same_v<Q, mha::scaled_int4>;
  const mha::Index columns = (out + 47) / 48 * 48;
  return static_cast<std::size_t>(columns) *
         static_cast<std::size_t>(four ? (in + 1) / 2 + (in + 31) / 32 * 2 : in + (in + 255) / 256 * 4);
}

}  // namespace support
