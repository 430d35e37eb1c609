// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <mha/core/check.hpp>
#include <mha/core/view.hpp>

namespace support {

/// What f throws, as text; empty if it does not throw an Error.
template <class Error = mha::ShapeError, class F> std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// A view whose elements along an axis are one.
template <class T, int Rank> mha::TensorView<T, Rank> repeated(mha::TensorView<T, Rank> v, int axis) {
  v.stride[axis] = 0;
  return v;
}
/// What a call says that would write there.
inline std::string overlaps_itself(const std::string& what, const std::string& axis, int elements) {
  return what + " overlaps itself: its axis " + axis + " has " + std::to_string(elements) +
         " elements and stride 0, expected memory of its own for each element";
}

}  // namespace support
