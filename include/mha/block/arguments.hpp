// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "../call.hpp"
#include "../call_backend.hpp"
#include "../core/add_to.hpp"
#include "../core/view.hpp"
#include "rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Rows that a call adds: linear(x, mha::residual(r)) is the product plus r, layer(x, mha::residual(r)) attention plus
/// r, norm(x, mha::residual(r)) the norm of x + r.
template <class View> struct Residual {
  static constexpr bool is_residual = true;
  View from;
};
template <Viewable Owner> [[nodiscard]] constexpr auto residual(Owner&& owner) {
  constexpr bool lasts = detail::view_lasts<Owner>();
  static_assert(lasts,
                "mha: residual(r) of a temporary r, such as residual(f(x)): name it first, auto r = f(x), because "
                "residual(r) does not keep what it points at (see mha/block/arguments.hpp)");
  using Rows = Residual<TensorView<const ScalarOf<Owner>, detail::ViewOf<Owner>::rank>>;
  if constexpr (lasts)
    return Rows{view(owner)};
  else
    return Rows{};
}

/// Where a norm also stores x + r, which the next residual is: norm(x, mha::residual(r), mha::sum_into(s)); s may be x
/// or r.
template <class View> struct SumInto { View to; };
template <Viewable Owner> [[nodiscard]] constexpr auto sum_into(Owner&& owner) {
  constexpr bool lasts = detail::view_lasts<Owner>();
  constexpr bool writable = !std::is_const_v<std::remove_pointer_t<decltype(detail::ViewOf<Owner>::data)>>;
  static_assert(lasts,
                "mha: sum_into(s) of a temporary s: the sum would be gone: name s first (see "
                "mha/block/arguments.hpp)");
  static_assert(writable,
                "mha: sum_into(s) of a constant s: the sum cannot be written to it (see mha/block/arguments.hpp)");
  using Sum = SumInto<TensorView<ScalarOf<Owner>, detail::ViewOf<Owner>::rank>>;
  if constexpr (lasts && writable)
    return Sum{view(owner)};
  else
    return Sum{};
}

namespace detail {

template <class T> constexpr bool is_sum_into = false;
template <class V> constexpr bool is_sum_into<SumInto<V>> = true;

template <class E>
concept SumIntoArgument = is_sum_into<std::remove_cvref_t<E>>;

/// (B, L, E); null data for rows of another scalar or other axes, which a sentence has refused.
template <class T, class Rows> constexpr TensorView<T, 3> with_batch_of(const Rows& rows) {
  if constexpr (SequenceOf<Rows, std::remove_const_t<T>>)
    return with_batch(rows);
  else
    return {};
}
template <class Rows, class T>
constexpr bool has_another_scalar = Sequence<Rows> && !SequenceOf<Rows, std::remove_const_t<T>>;

/// The rows of an argument, and the sentences for what they cannot be.
template <class T, class Rows> constexpr TensorView<T, 3> rows_of_argument(const Into<Rows>& into) {
  static_assert(Sequence<Rows>,
                "mha: into(y) takes a y with 2 or 3 axes, (L, E) or (B, L, E), as x has (see mha/call.hpp)");
  static_assert(!has_another_scalar<Rows, T>, "mha: into(y) has another scalar than the layer (see mha/call.hpp)");
  return with_batch_of<T>(into.to);
}
template <class T, class Rows> constexpr TensorView<T, 3> rows_of_argument(const Residual<Rows>& residual) {
  static_assert(
      Sequence<Rows>,
      "mha: residual(r) takes an r with 2 or 3 axes, (L, E) or (B, L, E), as x has (see mha/block/arguments.hpp)");
  static_assert(!has_another_scalar<Rows, T>,
                "mha: residual(r) has another scalar than the layer (see mha/block/arguments.hpp)");
  return with_batch_of<T>(residual.from);
}
template <class T, class Rows> constexpr TensorView<T, 3> rows_of_argument(const SumInto<Rows>& sum) {
  static_assert(
      Sequence<Rows>,
      "mha: sum_into(s) takes an s with 2 or 3 axes, (L, E) or (B, L, E), as x has (see mha/block/arguments.hpp)");
  static_assert(!has_another_scalar<Rows, T>,
                "mha: sum_into(s) has another scalar than the layer (see mha/block/arguments.hpp)");
  return with_batch_of<T>(sum.to);
}

/// The rows of the argument of a call that is an Into, a SumInto or, for a constant T, a Residual, (B, L, E); null data
/// without one: find_rows<Residual, const T>(extra...).
template <template <class> class Argument, class T> constexpr TensorView<T, 3> find_rows() { return {}; }
template <template <class> class Argument, class T, class Rows, class... Rest>
constexpr TensorView<T, 3> find_rows(const Argument<Rows>& found, const Rest&...) {
  return rows_of_argument<T>(found);
}
template <template <class> class Argument, class T, class Other, class... Rest>
constexpr TensorView<T, 3> find_rows(const Other&, const Rest&... rest) {
  return find_rows<Argument, T>(rest...);
}

/// f(y) with y where into(y) among a call's arguments sends the result, (B, L, width); without one, f writes a result
/// like X, of the sizes of `from`, which is returned.
template <class X, class T, class B, class F, class... Extra>
auto into_or_returned(const B& backend, const auto& from, Index width, const F& f, const Extra&... extra) {
  if constexpr ((IntoArgument<Extra> || ...)) {
    f(find_rows<Into, T>(extra...));
  } else {
    auto y = result_on<X>(backend_or(backend, extra...), from, width);
    f(with_batch(view(y)));
    return y;
  }
}

/// Where add_to(dx) among a call's arguments adds the gradient, (B, L, E); null data without one.
template <class T> constexpr TensorView<T, 3> find_add_to() { return {}; }
template <class T, class E, class... Rest> constexpr TensorView<T, 3> find_add_to(const E& first, const Rest&... rest) {
  if constexpr (AddToArgument<E>) {
    constexpr int rank = std::remove_cvref_t<decltype(first.to)>::rank;
    constexpr bool fits = std::is_same_v<decltype(first.to.data), T*> && (rank == 2 || rank == 3);
    static_assert(fits,
                  "mha: add_to(dx) of a backward pass takes rows of the scalar of what is called, not constant, with 2 "
                  "or 3 axes (see mha/block/arguments.hpp)");
    if constexpr (fits)
      return with_batch(first.to);
    else
      return {};
  } else {
    return find_add_to<T>(rest...);
  }
}

/// f(a RowGradient) with where mha::into(dx) or mha::add_to(dx) sends that of x; without either, f writes rows like dy,
/// of this width, which are returned.
template <class DY, class T, class B, class F, class... Extra>
auto gradient_of_rows(const B& backend, const TensorView<const T, 3>& dy, Index width, const F& f,
                      const Extra&... extra) {
  if constexpr ((AddToArgument<Extra> || ...))
    f(RowGradient<T>{find_add_to<T>(extra...), true});
  else
    return into_or_returned<DY, T>(
        backend, dy, width, [&](const TensorView<T, 3>& dx) { f(RowGradient<T>{dx}); }, extra...);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
