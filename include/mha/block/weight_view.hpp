// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../core/check.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

template <class Owner, class T, int Rank>
concept OwnsWeights = LastingView<Owner> && std::same_as<ScalarOf<Owner>, T> && ViewableOfRank<Owner, Rank, 2>;

}  // namespace detail

/// A matrix or vector of weights in memory that it does not own: made from a view or from a named owner that has one,
/// such as an Eigen matrix. A matrix of one row or column is a vector too.
///
/// Errors    ShapeError if a vector is made from a matrix of several rows and columns
template <class T, int Rank> struct WeightView : TensorView<const T, Rank> {
  constexpr WeightView() = default;
  template <detail::OwnsWeights<T, Rank> Owner>
  constexpr WeightView(Owner&& owner) : TensorView<const T, Rank>(with_rank(mha::view(owner))) {}

  // Refused in one sentence.
  template <class Other>
  requires(!detail::OwnsWeights<Other, T, Rank> && !std::same_as<std::remove_cvref_t<Other>, WeightView>)
      WeightView(Other&&) {
    constexpr bool viewable = Viewable<Other>;
    static_assert(viewable,
                  "mha: borrow() takes views: mha::view(pointer, in, out) of a pointer or a vector's data(), an Eigen "
                  "matrix or an mha::Tensor (see mha/block/weight_view.hpp)");
    if constexpr (viewable) {
      constexpr bool layers_scalar = std::is_same_v<ScalarOf<Other>, T>, lasts = detail::view_lasts<Other>();
      static_assert(
          layers_scalar,
          "mha: borrow() takes weights of the layer's scalar: convert these first, or name half or bfloat16 "
          "where they are that: borrow(mha::BorrowedWeights<mha::bfloat16>{…}), or BorrowedLinear, and so for "
          "quantize() (see mha/block/weight_view.hpp)");
      static_assert(lasts,
                    "mha: borrow() of temporary weights, which would be gone before the layer reads them: name them "
                    "first (see mha/block/weight_view.hpp)");
      constexpr bool fits = ViewableOfRank<Other, Rank, 2>;
      static_assert(fits, "mha: borrow() takes matrices (in, out) and vectors (out) (see mha/block/weight_view.hpp)");
    }
  }

 private:
  static constexpr TensorView<const T, Rank> with_rank(const TensorView<const T, Rank>& v) { return v; }
  static constexpr TensorView<const T, 1> with_rank(const TensorView<const T, 2>& v) requires(Rank == 1) {
    detail::require(v.extent[0] == 1 || v.extent[1] == 1, "borrow: a bias, norm or gate is (", v.extent[0], ", ",
                    v.extent[1], "), expected one row or one column");
    const int axis = v.extent[1] == 1 ? 0 : 1;
    return {v.data, {v.extent[axis]}, {v.stride[axis]}};
  }
};

namespace detail {

/// A borrowed matrix or vector has the shape that a configuration says; `remedy` is for a vector that is not expected.
template <class T>
void check_borrowed(const char* name, const TensorView<const T, 2>& w, Index in, Index out,
                    const char* call = "borrow") {
  require(w.extent[0] == in && w.extent[1] == out, call, ": the ", name, " matrix is (", w.extent[0], ", ", w.extent[1],
          "), expected (", in, ", ", out, ")",
          w.extent[0] == out && w.extent[1] == in ? ": pass mha::transposed(view)" : "");
  require_data(call, name, w);
}
template <class T>
void check_borrowed(const char* name, const TensorView<const T, 1>& w, Index wanted, const char* remedy = "",
                    const char* call = "borrow") {
  require(w.extent[0] == wanted, call, ": the ", name, " has ", w.extent[0], " elements, expected ", wanted,
          wanted == 0 ? remedy : "");
  require_data(call, name, w);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
