// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../pair_table.hpp"
#include "../score.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

template <class T>
concept NoTableOfNumbers = !Viewable<T> && !requires {
  std::remove_cvref_t<T>::role;  // an AdditiveBias to copy
};

}  // namespace detail

/// A table added to the scaled logits; −∞ hides the pair, a large finite number does not.
///
/// Shapes    (Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk); an axis of extent 1 is repeated. Rows are the call's queries.
/// Errors    ShapeError if an axis is neither 1 nor the call's
/// Memory    `memory` says where the table lies; of a bare view it is to be set if that is a device
template <class B> struct AdditiveBias {
  static_assert(!std::is_same_v<B, bool>,
                "mha: AdditiveBias adds numbers to logits: a table of bool, true where a query sees a key, is a mask, "
                "mha::Dense (see mha/policy/score/additive_bias.hpp)");
  static constexpr Role role = Role::score;
  static constexpr const char* name = "AdditiveBias";
  static constexpr bool additive = true;
  static constexpr bool borrows = true;
  TensorView<const B, 4> bias;
  Origins origin{};  ///< set by prepared()
  Memory memory = Memory::host;

  AdditiveBias() = default;
  constexpr explicit AdditiveBias(TensorView<const B, 4> table, Origins first_query)
      : bias(table), origin(first_query) {}
  template <Viewable Table>
  requires(detail::LastingView<Table>) constexpr explicit AdditiveBias(Table&& table)
      : bias(detail::as_pair_table(view(table))), memory(detail::table_memory<Table>()) {}
  // Refused in one sentence.
  template <Viewable Table>
  requires(!detail::LastingView<Table>) explicit AdditiveBias(Table&&) {
    static_assert(detail::valid<Table>,
                  "mha: AdditiveBias borrows its table, and a temporary one would be gone before the call reads it: "
                  "name it first (see mha/policy/score/additive_bias.hpp)");
  }
  template <detail::NoTableOfNumbers NoTable> explicit AdditiveBias(NoTable&&) {
    static_assert(detail::valid<NoTable>,
                  "mha: AdditiveBias takes a table of numbers with 2 to 4 axes: mha::Tensor<float, 2>, an Eigen matrix "
                  "or mha::view(pointer, Lq, Lk); an Eigen expression is computed and named first, const auto table = "
                  "expression.eval() (see mha/policy/score/additive_bias.hpp)");
  }

  template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index b, Index h, Index q, Index k) const {
    using A = Accumulator<B>;
    const A add = static_cast<A>(bias(b, h, q - origin[b], k));
    // Not a sum: the NaN of a poisoned key would swallow the −∞ that hides it.
    if constexpr (std::numeric_limits<A>::has_infinity)
      if (add == minus_infinity<A>()) return minus_infinity<T>();
    return static_cast<T>(s + add);
  }
  AdditiveBias prepared(const CallShape& s) const {
    AdditiveBias ready(detail::broadcast_to_call(bias, s, "AdditiveBias"), s.origin);
    ready.memory = memory;
    return ready;
  }
  template <class F> AdditiveBias with_data(F&& f) const {
    AdditiveBias moved = *this;
    moved.bias = detail::moved_table(bias, moved.memory, f);
    moved.origin = f(origin);
    return moved;
  }
};
template <Viewable Table> AdditiveBias(Table&&) -> AdditiveBias<ScalarOf<Table>>;
template <detail::NoTableOfNumbers NoTable> AdditiveBias(NoTable&&) -> AdditiveBias<float>;

}  // namespace mha::inline MHA_NAMESPACE
