// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../core/scalar.hpp"
#include "../core/view.hpp"

/// Steps of a layer's backward pass as items, for machines whose memory the host does not reach.
namespace mha::inline MHA_NAMESPACE::detail {

/// A row of one head each: d becomes the gradient before the gate, and what the row adds to that of the gate is left in
/// sums (B·L, Hq).
template <class T, class Concat> struct GateBackwardItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 4> heads;
  TensorView<T, 4> d;
  TensorView<const T, 1> gate;
  TensorView<LongSum<Accumulator<T>>, 2> sums;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index h) const {
    const Index b = static_cast<Index>(row / d.extent[1]), l = static_cast<Index>(row % d.extent[1]);
    sums(row, h) = Concat::template row_backward<T, LongSum<Accumulator<T>>>(heads.pointer(b, l, h, 0), d.extent[3],
                                                                             gate(h), d.pointer(b, l, h, 0));
  }
};

/// A row of one head each: d becomes the gradient before the norm, and what the row adds to that of the weight is left
/// in sums (B·L·H, D).
template <class T, class Norm> struct HeadNormBackwardItems {
  using A = Accumulator<T>;

  std::ptrdiff_t rows;
  Index columns, cost;
  Norm norm;
  TensorView<const T, 4> x;
  TensorView<const T, 1> weight;
  TensorView<A, 4> d;
  A* sums;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index h) const {
    const Index b = static_cast<Index>(row / d.extent[1]), l = static_cast<Index>(row % d.extent[1]);
    A* const own = sums + (row * columns + h) * d.extent[3];
    for (Index i = 0; i < d.extent[3]; ++i) own[i] = A(0);
    norm.row_backward(x.pointer(b, l, h, 0), x.stride[3], weight, d.pointer(b, l, h, 0), own);
  }
};

/// An element (i, j) of rows in a row, more of them than an Index may count, as a term of column sums.
template <class A> struct FlatTerm {
  const A* rows;
  Index width;
  MHA_HOST_DEVICE A operator()(std::ptrdiff_t i, Index j) const { return rows[i * width + j]; }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
