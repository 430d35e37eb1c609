// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "items.hpp"
#include "view.hpp"

namespace mha::inline v0::detail {

/// to = from, element by element, whatever the strides: Items whose rows are those of the last axis.
template <class T> struct CopyElements {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 4> from;
  TensorView<T, 4> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    const std::ptrdiff_t c = row % from.extent[2], rest = row / from.extent[2];
    const std::ptrdiff_t a = rest / from.extent[1], b = rest % from.extent[1];
    to(a, b, c, column) = from(a, b, c, column);
  }
};

/// Row-major memory of a frame with the extents of v.
template <class T, class View, class Frame> TensorView<T, View::rank> take_like(Frame& frame, const View& v) {
  return row_major<View::rank>(frame.template take<T>(static_cast<std::size_t>(v.size())), v.extent);
}

/// The items that copy `from` to `to`, which has the same extents.
template <class T, int Rank>
CopyElements<T> copy_items(const TensorView<const T, Rank>& from, const TensorView<T, Rank>& to) {
  const auto source = four_axes(from);
  return {std::ptrdiff_t{source.extent[0]} * source.extent[1] * source.extent[2], source.extent[3], 1, source,
          four_axes(to)};
}

}  // namespace mha::inline v0::detail
