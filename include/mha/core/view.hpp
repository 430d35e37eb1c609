// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "../config.hpp"
#include "check.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Elements of memory that it does not own, with Rank axes: pointer, extents and strides (both in elements).
///
/// Axes of rank 4 are (batch, length, heads, dim), of rank 3 (batch, length, dim), or (length, heads, dim) where
/// attention() takes it, of rank 2 (length, dim), whatever their order in memory: the strides say where each lies.
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
    static_assert(((std::numeric_limits<I>::is_integer || !std::numeric_limits<I>::is_specialized) && ...),
                  "mha: an index is an integer (see mha/core/view.hpp)");
    std::ptrdiff_t offset = 0;
    int axis = 0;
    ((offset += static_cast<std::ptrdiff_t>(i) * stride[axis++]), ...);
    return data + offset;
  }
  template <class... I>
  requires(sizeof...(I) == Rank) MHA_HOST_DEVICE constexpr T& operator()(I... i) const { return *pointer(i...); }

  /// How many elements; calls refuse a view whose number does not fit.
  [[nodiscard]] MHA_HOST_DEVICE constexpr std::ptrdiff_t size() const {
    std::size_t n = 1;
    for (Index e : extent) n *= static_cast<std::size_t>(e);
    return static_cast<std::ptrdiff_t>(n);
  }

  MHA_HOST_DEVICE constexpr Index batch() const requires(Rank == 3 || Rank == 4) { return extent[0]; }
  MHA_HOST_DEVICE constexpr Index length() const requires(Rank >= 2 && Rank <= 4) { return extent[Rank == 2 ? 0 : 1]; }
  MHA_HOST_DEVICE constexpr Index heads() const requires(Rank == 4) { return extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const requires(Rank >= 2 && Rank <= 4) { return extent[Rank - 1]; }

  /// Refused in one sentence.
  template <class Other>
  requires(!std::convertible_to<const Other&, TensorView> || std::same_as<Other, TensorView>) const TensorView&
  operator=(const Other&) const {
    static_assert(
        detail::valid<Other>,
        "mha: a view takes no elements by assignment: write them one by one, v(i) = x; a layer's matrices take a "
        "matrix, p.query = m, and those of a Linear are row-major at p.weight.data (see mha/core/view.hpp)");
    return *this;
  }

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
template <class T, int Rank> [[nodiscard]] constexpr bool is_contiguous(const TensorView<T, Rank>& v) {
  std::int64_t expected = 1;
  for (int a = Rank - 1; a >= 0; --a) {
    if (v.extent[a] != 1 && v.stride[a] != expected) return false;
    const std::int64_t n = v.extent[a] > 0 ? v.extent[a] : 1;
    if (!detail::product_fits(expected, n)) return false;
    expected *= n;
  }
  return true;
}

namespace detail {

/// checked_product() of a view's extents.
template <class View> constexpr std::ptrdiff_t checked_elements(const char* call, const char* name, const View& v) {
  return [&]<std::size_t... Axis>(std::index_sequence<Axis...>) {
    return checked_product(call, name, {std::int64_t{v.extent[Axis]}...});
  }
  (std::make_index_sequence<std::size_t{View::rank}>());
}

/// A view that has elements must have memory, and its size and its offsets in bytes must fit in a std::ptrdiff_t.
template <class T, int Rank> void require_data(const char* call, const char* name, const TensorView<T, Rank>& v) {
  for (int a = 0; a < Rank; ++a)
    require(v.extent[a] >= 0, call, ": ", name, " has extent ", v.extent[a], " on axis ", a);
  checked_elements(call, name, v);
  std::int64_t reach = sizeof(T);
  for (int a = 0; a < Rank; ++a) {
    if (v.extent[a] <= 1) continue;
    constexpr std::int64_t most = std::numeric_limits<std::ptrdiff_t>::max();
    const std::int64_t stride = v.stride[a], step = stride < 0 ? -std::max(stride, -most) : stride;
    const std::int64_t last = std::int64_t{sizeof(T)} * (v.extent[a] - 1);
    const bool fits = stride >= -most && product_fits(step, last) && step * last <= most - reach;
    if (fits) reach += step * last;
    require(fits, call, ": ", name, " has stride ", v.stride[a], " on axis ", a, " of extent ", v.extent[a],
            ", which leads out of the address space");
  }
  require(v.data != nullptr || v.size() == 0, call, ": ", name, " has ", v.size(), " elements but its data is null");
}

/// Memory with these extents, row-major.
///
/// Errors    ShapeError if they are too many elements
template <int Rank, class T>
constexpr TensorView<T, Rank> row_major(T* data, const Index* extents, const char* call = "view") {
  TensorView<T, Rank> v{data, {}, {}};
  for (int a = 0; a < Rank; ++a) v.extent[a] = extents[a];
  checked_elements(call, "a tensor", v);
  std::ptrdiff_t stride = 1;
  for (int a = Rank - 1; a >= 0; --a) {
    v.stride[a] = stride;
    stride *= extents[a] > 0 ? extents[a] : 1;
  }
  return v;
}

/// The stride of an axis, or 0 where it is beyond any memory, as that of an axis of one element may be: a loop that
/// steps by it past its last element stays in the address space.
constexpr std::ptrdiff_t step_of_axis(Index extent, std::ptrdiff_t stride) {
  constexpr std::ptrdiff_t most = most_elements / 256;
  return extent <= 1 && (stride > most || stride < -most) ? 0 : stride;
}

/// Up to four axes as four, the absent ones in front of extent 1.
template <class T, int Rank> constexpr TensorView<T, 4> four_axes(const TensorView<T, Rank>& v) {
  TensorView<T, 4> r{v.data, {1, 1, 1, 1}, {}};
  for (int a = 0; a < Rank; ++a) {
    r.extent[4 - Rank + a] = v.extent[a];
    r.stride[4 - Rank + a] = step_of_axis(v.extent[a], v.stride[a]);
  }
  return r;
}

/// One head (L, D), one sequence (L, H, D) or a batch (B, L, H, D), as four axes.
template <class T, int Rank> constexpr TensorView<T, 4> with_heads(const TensorView<T, Rank>& v) {
  const TensorView<T, 4> all = four_axes(v);
  if constexpr (Rank == 2)
    return {v.data, {1, v.extent[0], 1, v.extent[1]}, {0, all.stride[2], 0, all.stride[3]}};
  else
    return all;
}

}  // namespace detail

/// Dense row-major memory: view(p, 3, 4) has axes (3, 4) and strides (4, 1).
///
/// Errors    ShapeError if an extent is no whole number or beyond what an Index holds, or all together are beyond any
///           memory
template <class T, std::convertible_to<Index>... I>
requires(sizeof...(I) >= 1 && sizeof...(I) <= 5)
    [[nodiscard]] constexpr TensorView<T, static_cast<int>(sizeof...(I))> view(T* data, I... extents) {
  const Index all[] = {detail::as_extent(extents)...};
  return detail::row_major<static_cast<int>(sizeof...(I))>(data, all);
}

/// Memory ordered (batch, length, heads, dim), heads side by side in a row: what a projection writes.
template <class T, std::convertible_to<Index> B, std::convertible_to<Index> L, std::convertible_to<Index> H,
          std::convertible_to<Index> D>
[[nodiscard]] constexpr TensorView<T, 4> view_blhd(T* data, B batch, L length, H heads, D dim) {
  return view(data, batch, length, heads, dim);
}

/// Memory ordered (batch, heads, length, dim), one head after another; the axes are (batch, length, heads, dim) too.
template <class T, std::convertible_to<Index> B, std::convertible_to<Index> H, std::convertible_to<Index> L,
          std::convertible_to<Index> D>
[[nodiscard]] constexpr TensorView<T, 4> view_bhld(T* data, B batch, H heads, L length, D dim) {
  const auto v = view(data, batch, heads, length, dim);
  return {
      data, {v.extent[0], v.extent[2], v.extent[1], v.extent[3]}, {v.stride[0], v.stride[2], v.stride[1], v.stride[3]}};
}

/// The two axes exchanged, no copy: an (out, in) weight of a checkpoint read as (in, out).
template <class T> [[nodiscard]] constexpr TensorView<T, 2> transposed(const TensorView<T, 2>& v) {
  return {v.data, {v.extent[1], v.extent[0]}, {v.stride[1], v.stride[0]}};
}

/// How a foreign type becomes a view: specialised for Tensor and TensorView here, for Eigen in interop/eigen.hpp.
///
/// A specialisation has `using Scalar`, `static constexpr int rank` and `static auto view(Owner&)`, of a const Owner
/// too, as which calls take what they read; with `static auto make(extents...)` attention and the layer return that
/// type, else the backend's Tensor; with `static constexpr Memory memory` an owner that lies in memory of another
/// machine than the backend's does not compile; with `static constexpr bool borrows = true`, for a type that points at
/// memory it does not own, temporaries have a view too.
template <class Owner> struct ViewTraits;

template <class T, int Rank> struct ViewTraits<TensorView<T, Rank>> {
  using Scalar = std::remove_const_t<T>;
  static constexpr int rank = Rank;
  static constexpr bool borrows = true;
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

/// Whether a view of an argument of this type outlives the argument: it has a name, or it points at memory that it
/// does not own, as a TensorView and Eigen's Block do.
template <class T> constexpr bool view_lasts() {
  if constexpr (requires { ViewTraits<std::remove_cvref_t<T>>::borrows; })
    return ViewTraits<std::remove_cvref_t<T>>::borrows || std::is_lvalue_reference_v<T>;
  else
    return std::is_lvalue_reference_v<T>;
}
template <class T>
concept LastingView = Viewable<T> && view_lasts<T>();

template <class Owner> using ViewOf = decltype(ViewTraits<std::remove_cvref_t<Owner>>::view(std::declval<Owner&>()));

}  // namespace detail

/// ScalarOf, const where a view of such a tensor is not to be written.
template <class T> using ElementOf = std::remove_pointer_t<decltype(detail::ViewOf<T>::data)>;

namespace detail {

/// Whether two views may show one element: their addresses from the first to the last meet.
template <class A, int RankA, class B, int RankB>
bool may_overlap(const TensorView<A, RankA>& a, const TensorView<B, RankB>& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const auto span_of = [](const auto& v) {
    std::ptrdiff_t low = 0, high = 0;
    for (int axis = 0; axis < v.rank; ++axis) {
      const std::ptrdiff_t end = (v.extent[axis] - 1) * v.stride[axis];
      low += std::min<std::ptrdiff_t>(end, 0);
      high += std::max<std::ptrdiff_t>(end, 0);
    }
    const auto at = reinterpret_cast<std::uintptr_t>(v.data);
    const auto bytes = static_cast<std::ptrdiff_t>(sizeof(*v.data));
    return std::pair(at + static_cast<std::uintptr_t>(low * bytes), at + static_cast<std::uintptr_t>(high * bytes));
  };
  const auto [a_first, a_last] = span_of(a);
  const auto [b_first, b_last] = span_of(b);
  return a_first <= b_last && b_first <= a_last;
}

}  // namespace detail

/// The view of a named owner, or of a temporary that points at memory it does not own.
template <detail::LastingView T> [[nodiscard]] constexpr detail::ViewOf<T> view(T&& owner) {
  return ViewTraits<std::remove_cvref_t<T>>::view(owner);
}
/// Refused in one sentence.
template <Viewable T>
requires(!detail::view_lasts<T>()) detail::ViewOf<T> view(T&&) {
  static_assert(detail::valid<T>,
                "mha: a view of a temporary would point at memory that is gone: name its owner first "
                "(see mha/core/view.hpp)");
  return {};
}

}  // namespace mha::inline MHA_NAMESPACE
