// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <Eigen/Core>
#include <type_traits>

#include "../core/scalar.hpp"
#include "../core/view.hpp"

namespace mha::inline v0 {

namespace detail {

/// Matrix, Array, Map, Ref, Block …: whatever has coefficients in memory.
template <class D>
concept EigenInMemory = std::derived_from<D, Eigen::DenseBase<D>> && requires(D& d) {
  { d.data() } -> std::convertible_to<const typename D::Scalar*>;
  { d.innerStride() } -> std::convertible_to<std::ptrdiff_t>;
  { d.outerStride() } -> std::convertible_to<std::ptrdiff_t>;
};

}  // namespace detail

/// An Eigen object as a view with axes (rows, cols); its storage order becomes the strides, nothing is copied.
///
/// Eigen's default is column-major: the kernels want rows that are contiguous along the last axis and pack others once.
template <detail::EigenInMemory D> struct ViewTraits<D> {
  using Scalar = typename D::Scalar;
  static constexpr int rank = 2;
  static constexpr Memory memory = Memory::host;

  template <class Owner> static auto view(Owner& m) {
    using Pointer = decltype(m.data());
    using T = std::remove_pointer_t<Pointer>;
    const std::ptrdiff_t inner = m.innerStride(), outer = m.outerStride();
    return TensorView<T, 2>{m.data(),
                            {detail::as_extent(m.rows()), detail::as_extent(m.cols())},
                            {D::IsRowMajor ? outer : inner, D::IsRowMajor ? inner : outer}};
  }

  /// Results are row-major: rows are positions and stay contiguous.
  static auto make(Index rows, Index cols) {
    return Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>(rows, cols);
  }
};

template <> struct ScalarTraits<Eigen::half> { using Accumulator = float; };
template <> struct ScalarTraits<Eigen::bfloat16> { using Accumulator = float; };

}  // namespace mha::inline v0
