// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../config.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// mean (B, Lq, Lk) = each (B, H, Lq, Lk) averaged over H: Items whose rows are those of queries.
template <class A> struct MeanOverHeads {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const A, 4> each;
  TensorView<A, 3> mean;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index k) const {
    const Index b = static_cast<Index>(row / mean.extent[1]), i = static_cast<Index>(row % mean.extent[1]);
    A sum(0);
    for (Index h = 0; h < each.extent[1]; ++h) sum += each(b, h, i, k);
    mean(b, i, k) = sum / A(each.extent[1]);
  }
};
template <class A> MeanOverHeads<A> mean_over_heads(const TensorView<const A, 4>& each, const TensorView<A, 3>& mean) {
  return {std::ptrdiff_t{mean.extent[0]} * mean.extent[1], mean.extent[2], each.extent[1], each, mean};
}

}  // namespace mha::inline MHA_NAMESPACE::detail
