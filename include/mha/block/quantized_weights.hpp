// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../core/check.hpp"
#include "../core/rounded_weights.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "narrow_weights.hpp"

/// Weights rounded to 8 or 4 bits under float activations.
namespace mha::inline MHA_NAMESPACE::detail {

/// The sentence for weights of W that are to be rounded to Q under activations of T on B.
template <class Q, class T, class W, class B> constexpr bool check_quantized() {
  static_assert(is_rounded<Q>,
                "mha: quantize<Q>() rounds to scaled_int8 or scaled_int4; borrow() keeps weights in half and bfloat16 "
                "(see mha/block/quantized_weights.hpp)");
  constexpr bool on_host = computes_on_host<B>;
  static_assert(
      on_host,
      "mha: quantize() keeps weights in 8 or 4 bits on the host's backends, such as Cpu; on a GPU use bfloat16 "
      "(see mha/block/quantized_weights.hpp)");
  constexpr bool fits =
      (std::is_same_v<T, float> || std::is_same_v<T, double>)&&(std::is_same_v<W, T> || NarrowScalar<W>);
  static_assert(fits,
                "mha: quantize() is of layers, Linears and FeedForwards of float or double, and takes weights of their "
                "scalar, or half and bfloat16 ones: convert these first (see mha/block/quantized_weights.hpp)");
  return is_rounded<Q> && fits && on_host;
}

/// Whether the backend multiplies rows of T by integers that it makes of weights of W.
template <class B, class T, class W, class Q>
constexpr bool keeps_rounded = computes_on_host<B>&& QuantizesWeights<B, T, W, Q>;

/// What quantize() says of weights of which a backend packed the only ones.
inline void require_unpacked(bool readable, const char* call, const char* what, std::int64_t count) {
  require(readable, call, ": of the ", what, "'s ", count,
          " parameters only the packed ones are left: pass the weights themselves, quantize(weights)");
}

/// Each number of a matrix (in, out) = what its integer of Q and scale make of it.
template <class Q, class T> void round_weights(const TensorView<T, 2>& m) {
  for (Index j = 0; j < m.extent[1]; ++j)
    for (Index begin = 0; begin < m.extent[0]; begin += weights_per_scale<Q>) {
      const Index end = std::min(begin + weights_per_scale<Q>, m.extent[0]);
      float farthest = 0;
      for (Index i = begin; i < end; ++i) farthest = farther(farthest, static_cast<float>(m(i, j)));
      const WeightRounding<Q> rounding(farthest);
      for (Index i = begin; i < end; ++i) {
        const float integer = rounding.integer(static_cast<float>(m(i, j)));
        m(i, j) = static_cast<T>(integer * rounding.scale);
      }
    }
}

}  // namespace mha::inline MHA_NAMESPACE::detail
