// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../config.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/activation.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// to = activation(sum) + residual, or activation(gate) ∘ sum + residual, of sums that a product has stored: what
/// Epilogue is, as items. S is T or its accumulator.
///
/// Shapes    all (M, N)  gate null data unless gated, residual null data for none; to may be any of the others
template <class T, class F, class S = T> struct EpilogueItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  F activation;
  TensorView<const S, 2> gate, sum;
  TensorView<const T, 2> residual;
  TensorView<T, 2> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    using A = Accumulator<T>;
    A y(sum(row, column));
    if constexpr (is_gated<F>)
      y = static_cast<A>(activation.activation(A(gate(row, column)))) * y;
    else
      y = static_cast<A>(activation(y));
    if (residual.data != nullptr) y += A(residual(row, column));
    to(row, column) = T(y);
  }
};

/// to = sum + residual.
template <class T>
EpilogueItems<T, Identity> sum_items(const TensorView<const T, 2>& sum, const TensorView<const T, 2>& residual,
                                     const TensorView<T, 2>& to) {
  constexpr Index cost = 2;  // in numbers read
  return {to.extent[0], to.extent[1], cost, {}, {}, sum, residual, to};
}

}  // namespace mha::inline MHA_NAMESPACE::detail
