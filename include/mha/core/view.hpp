// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>

#include "../config.hpp"
#include "check.hpp"

namespace mha::inline v0 {

/// Elements of somebody else's memory with Rank axes: pointer, extents and strides (both in elements).
///
/// Axes of rank 4 are (batch, length, heads, dim), of rank 3 (batch, length, dim), of rank 2 (length, dim), whatever
/// their order in memory: the strides say where each lies.
template <class T, int Rank> struct TensorView {
  static_assert(Rank >= 1 && Rank <= 5, "mha: a TensorView has one to five axes (see mha/core/view.hpp)");
  static constexpr int rank = Rank;
  using Scalar = std::remove_const_t<T>;

  T* data = nullptr;
  Index extent[std::size_t{Rank}] = {};
  std::ptrdiff_t stride[std::size_t{Rank}] = {};

  /// Where an element lies; of a view without elements, where it would.
  template <class... I>
  requires(sizeof...(I) == Rank) MHA_HOST_DEVICE constexpr T* pointer(I... i) const {
    std::ptrdiff_t offset = 0;
    int axis = 0;
    ((offset += static_cast<std::ptrdiff_t>(i) * stride[axis++]), ...);
    return data + offset;
  }
  template <class... I>
  requires(sizeof...(I) == Rank) MHA_HOST_DEVICE constexpr T& operator()(I... i) const { return *pointer(i...); }

  MHA_HOST_DEVICE constexpr std::ptrdiff_t size() const {
    std::ptrdiff_t n = 1;
    for (Index e : extent) n *= e;
    return n;
  }

  MHA_HOST_DEVICE constexpr Index batch() const requires(Rank == 3 || Rank == 4) { return extent[0]; }
  MHA_HOST_DEVICE constexpr Index length() const requires(Rank >= 2 && Rank <= 4) { return extent[Rank == 2 ? 0 : 1]; }
  MHA_HOST_DEVICE constexpr Index heads() const requires(Rank == 4) { return extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const requires(Rank >= 2 && Rank <= 4) { return extent[Rank - 1]; }

  /// Read-only from writable. A template, because nvcc warns on a plain conversion to the same type.
  template <class U>
  requires(std::same_as<U, const T> && !std::is_const_v<T>) MHA_HOST_DEVICE constexpr operator TensorView<U, Rank>()
      const {
    TensorView<U, Rank> v{data, {}, {}};
    for (int a = 0; a < Rank; ++a) {
      v.extent[a] = extent[a];
      v.stride[a] = stride[a];
    }
    return v;
  }
};

/// Whether the elements lie one after another in the order of the axes.
template <class T, int Rank> constexpr bool is_contiguous(const TensorView<T, Rank>& v) {
  std::ptrdiff_t expected = 1;
  for (int a = Rank - 1; a >= 0; --a) {
    if (v.extent[a] != 1 && v.stride[a] != expected) return false;
    expected *= v.extent[a];
  }
  return true;
}

namespace detail {

/// A number of elements along an axis, which an Index must hold: a std::size_t of 2³² would become 0.
template <class I> constexpr Index as_extent(I n) {
  if constexpr (std::integral<I> && sizeof(I) >= sizeof(Index))
    if (!std::in_range<Index>(n))
      fail("view: an extent is ", n, ", the largest is ", std::numeric_limits<Index>::max());
  return static_cast<Index>(n);
}

/// Memory with these extents, row-major.
template <int Rank, class T> constexpr TensorView<T, Rank> row_major(T* data, const Index* extents) {
  TensorView<T, Rank> v{data, {}, {}};
  std::ptrdiff_t stride = 1;
  for (int a = Rank - 1; a >= 0; --a) {
    v.extent[a] = extents[a];
    v.stride[a] = stride;
    stride *= extents[a];
  }
  return v;
}

/// Up to four axes as four, the absent ones in front of extent 1.
template <class T, int Rank> constexpr TensorView<T, 4> four_axes(const TensorView<T, Rank>& v) {
  TensorView<T, 4> r{v.data, {1, 1, 1, 1}, {}};
  for (int a = 0; a < Rank; ++a) {
    r.extent[4 - Rank + a] = v.extent[a];
    r.stride[4 - Rank + a] = v.stride[a];
  }
  return r;
}

}  // namespace detail

/// Dense row-major memory: view(p, 3, 4) has axes (3, 4) and strides (4, 1).
///
/// Errors    ShapeError if an extent is beyond what an Index holds
template <class T, std::convertible_to<Index>... I>
requires(sizeof...(I) >= 1 &&
         sizeof...(I) <= 5) constexpr TensorView<T, static_cast<int>(sizeof...(I))> view(T* data, I... extents) {
  const Index all[] = {detail::as_extent(extents)...};
  return detail::row_major<static_cast<int>(sizeof...(I))>(data, all);
}

/// Memory ordered (batch, length, heads, dim), heads side by side in a row: what a projection writes.
template <class T> constexpr TensorView<T, 4> view_blhd(T* data, Index batch, Index length, Index heads, Index dim) {
  return view(data, batch, length, heads, dim);
}

/// Memory ordered (batch, heads, length, dim), one head after another; the axes are (batch, length, heads, dim) too.
template <class T> constexpr TensorView<T, 4> view_bhld(T* data, Index batch, Index heads, Index length, Index dim) {
  const auto v = view(data, batch, heads, length, dim);
  return {data, {batch, length, heads, dim}, {v.stride[0], v.stride[2], v.stride[1], v.stride[3]}};
}

/// The two axes exchanged, no copy: an (out, in) weight of a checkpoint read as (in, out).
template <class T> constexpr TensorView<T, 2> transposed(const TensorView<T, 2>& v) {
  return {v.data, {v.extent[1], v.extent[0]}, {v.stride[1], v.stride[0]}};
}

/// How a foreign type becomes a view: specialised for Tensor and TensorView here, for Eigen in interop/eigen.hpp.
///
/// A specialisation has `using Scalar`, `static constexpr int rank` and `static auto view(Owner&)`; with
/// `static auto make(extents...)` attention and the layer return that type, else the backend's Tensor; with
/// `static constexpr Memory memory` an owner that lies in memory of another machine than the backend's does not
/// compile.
template <class Owner> struct ViewTraits;

template <class T, int Rank> struct ViewTraits<TensorView<T, Rank>> {
  using Scalar = std::remove_const_t<T>;
  static constexpr int rank = Rank;
  static constexpr TensorView<T, Rank> view(const TensorView<T, Rank>& v) { return v; }
};

/// A type that has a view.
template <class T>
concept Viewable = requires(T& t) {
  ViewTraits<std::remove_cvref_t<T>>::view(t);
};

/// Viewable with one of the given numbers of axes.
template <class T, int... Ranks>
concept ViewableOfRank = Viewable<T> &&((ViewTraits<std::remove_cvref_t<T>>::rank == Ranks) || ...);

template <class T> using ScalarOf = typename ViewTraits<std::remove_cvref_t<T>>::Scalar;

namespace detail {

/// Whether what T's type tells is no other memory than this; a bare view tells nothing.
template <class T, Memory where> constexpr bool may_lie_in() {
  using Traits = ViewTraits<std::remove_cvref_t<T>>;
  if constexpr (requires { Traits::memory; })
    return Traits::memory == where;
  else
    return true;
}

}  // namespace detail

/// The view of a named owner. A temporary owner is refused: it would be gone before the view is used.
template <Viewable T> constexpr auto view(T& owner) { return ViewTraits<std::remove_cvref_t<T>>::view(owner); }
template <Viewable T>
requires(!std::is_lvalue_reference_v<T>) void view(T&& temporary_owner) = delete;
template <class T, int Rank> constexpr TensorView<T, Rank> view(TensorView<T, Rank>&& v) { return v; }

}  // namespace mha::inline v0
