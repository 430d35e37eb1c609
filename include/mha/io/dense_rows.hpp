// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "../config.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// All axes as five, the absent ones in front of extent 1.
template <class T, int Rank> TensorView<T, 5> five_axes(const TensorView<T, Rank>& v) {
  TensorView<T, 5> r{v.data, {1, 1, 1, 1, 1}, {}};
  for (int a = 0; a < Rank; ++a) {
    r.extent[5 - Rank + a] = v.extent[a];
    r.stride[5 - Rank + a] = step_of_axis(v.extent[a], v.stride[a]);
  }
  return r;
}

/// f(the first element of a row) for the rows of the last axis, in the order in which a file has them.
template <class T, class F> void each_row(const TensorView<T, 5>& v, const F& f) {
  if (v.extent[4] == 0) return;
  for (Index a = 0; a < v.extent[0]; ++a)
    for (Index b = 0; b < v.extent[1]; ++b)
      for (Index c = 0; c < v.extent[2]; ++c)
        for (Index d = 0; d < v.extent[3]; ++d) f(v.pointer(a, b, c, d, 0));
}

/// The shape of a view in a file with so many axes: those in front become one.
template <class T, int Rank> std::vector<std::uint64_t> joined_shape(const TensorView<T, Rank>& v, int rank) {
  std::vector<std::uint64_t> shape;
  for (int axis = 0; axis < Rank; ++axis) {
    const auto extent = static_cast<std::uint64_t>(v.extent[axis]);
    if (axis > 0 && axis <= Rank - rank)
      shape[0] *= extent;
    else
      shape.push_back(extent);
  }
  return shape;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
