// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "core/add_to.hpp"
#include "core/scalar.hpp"
#include "core/view.hpp"
#include "policy/call_shape.hpp"
#include "policy/score_gradient.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Where attention_backward() writes the gradient of the call's AdditiveBias: BiasGradient(table), or adds it to what
/// the table holds: BiasGradient(mha::add_to(table)).
///
/// Shapes    to as the bias itself; axes that the bias repeats are summed
/// Numerics  sums in double for float, with the same bits for any number of threads
/// Cost      sums of the table's size in memory if the bias repeats an axis or they are added; heads that share a table
///           of queries × keys are computed one after another, on all threads each
template <class E> struct BiasGradient {
  static_assert(!std::is_const_v<E>,
                "mha: BiasGradient writes its table, and this one is const (see mha/bias_gradient.hpp)");
  TensorView<E, 4> to;
  bool adds = false;

  template <ViewableOfRank<2, 3, 4> Owner>
  requires(!std::same_as<std::remove_cvref_t<Owner>, BiasGradient>) constexpr explicit BiasGradient(Owner&& owner)
      : to(detail::four_axes(view(std::forward<Owner>(owner)))) {}
  template <ViewableOfRank<2, 3, 4> View>
  constexpr explicit BiasGradient(const AddTo<View>& sum) : to(detail::four_axes(sum.to)), adds(true) {}
};
template <Viewable Owner> BiasGradient(Owner&&) -> BiasGradient<ElementOf<Owner>>;
template <class View> BiasGradient(AddTo<View>) -> BiasGradient<ElementOf<View>>;

namespace detail {

template <class T> constexpr bool is_bias_gradient = false;
template <class E> constexpr bool is_bias_gradient<BiasGradient<E>> = true;
template <class E>
concept BiasGradientArgument = is_bias_gradient<std::remove_cvref_t<E>>;

/// The sums of a table's gradients while a call runs, and what becomes of them.
template <class A, class E> class TableSums {
  using Sum = LongSum<A>;

 public:
  /// Of the table's gradient and the call; the gradient itself holds the sums if each element has one pair at most, and
  /// nothing is added to what stands there.
  template <class Frame>
  TableSums(const BiasGradient<E>& given, const CallShape& call, Frame& frame) : to_(given.to), adds_(given.adds) {
    const TensorView<E, 4>& to = to_;
    const Index of_call[4] = {call.batch, call.heads, call.queries, call.keys};
    bool repeats[4];
    for (int a = 0; a < 4; ++a) repeats[a] = to.extent[a] == 1 && of_call[a] > 1;
    table.origin = call.origin;
    if constexpr (std::is_same_v<E, A>)
      if (!adds_ && !repeats[0] && !repeats[1] && !repeats[2] && !repeats[3]) {
        std::copy_n(to.stride, 4, table.stride);
        table.elements = to.data;
        return;
      }
    for (int a = 0; a < 4; ++a) extent_[a] = to.extent[a];
    // Where it costs no more than rows, heads have sums of their own, and so have queries that would meet in one.
    for (int a = 0; a < (repeats[2] && repeats[3] ? 3 : repeats[2] || repeats[3] ? 2 : 0); ++a)
      extent_[a] = std::max(extent_[a], of_call[a]);
    std::ptrdiff_t size = 1;
    for (int a = 3; a >= 0; --a) {
      table.stride[a] = extent_[a] > 1 ? size : 0;
      size *= extent_[a];
    }
    table.sums = frame.template take<Sum>(static_cast<std::size_t>(size));
    std::fill_n(table.sums, size, Sum(0));
  }

  /// The gradient ← 0 where it holds the sums.
  void clear() const {
    if (table.elements != nullptr) for_each([&](Index b, Index h, Index q, Index k) { to_(b, h, q, k) = E(0); });
  }

  /// The gradient from the sums.
  void store() const {
    if (table.elements != nullptr) return;
    const auto first = [&](int axis, Index i) { return to_.extent[axis] == extent_[axis] ? i : Index{0}; };
    const auto last = [&](int axis, Index i) { return to_.extent[axis] == extent_[axis] ? i + 1 : extent_[axis]; };
    for_each([&](Index b, Index h, Index q, Index k) {
      Sum sum(0);
      for (Index x = first(0, b); x < last(0, b); ++x)
        for (Index y = first(1, h); y < last(1, h); ++y)
          for (Index z = first(2, q); z < last(2, q); ++z)
            sum += table.sums[x * table.stride[0] + y * table.stride[1] + z * table.stride[2] + k * table.stride[3]];
      E& x = to_(b, h, q, k);
      x = static_cast<E>(adds_ ? static_cast<A>(x) + static_cast<A>(sum) : static_cast<A>(sum));
    });
  }

  TableGradient<A, Sum> table;

 private:
  template <class F> void for_each(F&& f) const {
    for (Index b = 0; b < to_.extent[0]; ++b)
      for (Index h = 0; h < to_.extent[1]; ++h)
        for (Index q = 0; q < to_.extent[2]; ++q)
          for (Index k = 0; k < to_.extent[3]; ++k) f(b, h, q, k);
  }

  TensorView<E, 4> to_;
  bool adds_;
  Index extent_[4] = {};
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
