// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include "view.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class View> struct AddTo { View to; };
/// As a destination of gradients: they are added to what x holds.
template <detail::LastingView Owner> [[nodiscard]] constexpr auto add_to(Owner&& owner) {
  return AddTo<detail::ViewOf<Owner>>{view(std::forward<Owner>(owner))};
}

namespace detail {

template <class E> constexpr bool is_add_to = false;
template <class View> constexpr bool is_add_to<AddTo<View>> = true;
template <class E>
concept AddToArgument = is_add_to<std::remove_cvref_t<E>>;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
