// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "../mask.hpp"
#include "../pair_table.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

template <class T>
concept TableOfBool = ViewableOfRank<T, 2, 3, 4> &&(std::is_same_v<ScalarOf<T>, bool>);

}  // namespace detail

/// A table of booleans, true = visible.
///
/// Shapes    (Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk); an axis of extent 1 is repeated. Rows are the call's queries.
///           One table for each sequence is mha::view(p, B, 1, Lq, Lk): three axes would be heads.
/// Cost      on a processor a tile is classified by its bytes, where keys or queries lie side by side; on a GPU every
///           tile is tested pair by pair
/// Errors    ShapeError if an axis is neither 1 nor the call's
/// Memory    `memory` says where the table lies; of a bare view it is to be set if that is a device
struct Dense {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Dense";
  static constexpr bool borrows = true;
  TensorView<const bool, 4> visible;
  Origins origin{};  ///< set by prepared()
  Memory memory = Memory::host;

  Dense() = default;
  constexpr explicit Dense(TensorView<const bool, 4> table, Origins first_query = {})
      : visible(table), origin(first_query) {}
  template <detail::TableOfBool Table>
  requires(detail::LastingView<Table>) constexpr explicit Dense(Table&& table)
      : visible(detail::as_pair_table(view(table))), memory(detail::table_memory<Table>()) {}
  // Refused in one sentence.
  template <detail::TableOfBool Table>
  requires(!detail::LastingView<Table>) explicit Dense(Table&&) {
    static_assert(detail::valid<Table>,
                  "mha: Dense borrows its table, and a temporary one would be gone before the call reads it: name it "
                  "first (see mha/policy/mask/dense.hpp)");
  }
  template <class NoTableOfBool>
  requires(!detail::TableOfBool<NoTableOfBool> &&
           !std::derived_from<std::remove_cvref_t<NoTableOfBool>, Dense>) explicit Dense(NoTableOfBool&&) {
    static_assert(detail::valid<NoTableOfBool>,
                  "mha: Dense takes a table of bool with 2 to 4 axes: mha::Tensor<bool, 2>, an Eigen matrix of bool or "
                  "mha::view(pointer, Lq, Lk); a std::vector<bool> has no bools in memory, and numbers to add are an "
                  "mha::AdditiveBias (see mha/policy/mask/dense.hpp)");
  }

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index h, Index q, Index k) const {
    return visible(b, h, q - origin[b], k);
  }
  Dense prepared(const CallShape& s) const {
    Dense ready(detail::broadcast_to_call(visible, s, "Dense"), s.origin);
    ready.memory = memory;
    return ready;
  }
  template <class F> Dense with_data(F&& f) const {
    Dense moved = *this;
    moved.visible = detail::moved_table(visible, moved.memory, f);
    moved.origin = f(origin);
    return moved;
  }
};

namespace detail {

/// Whether a mask is a Dense or is composed of one.
template <class M> constexpr bool contains_table = false;
template <> inline constexpr bool contains_table<Dense> = true;
template <class X, class Y> constexpr bool contains_table<And<X, Y>> = contains_table<X> || contains_table<Y>;
template <class X, class Y> constexpr bool contains_table<Or<X, Y>> = contains_table<X> || contains_table<Y>;
template <class X> constexpr bool contains_table<Not<X>> = contains_table<X>;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
