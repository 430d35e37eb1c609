// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "view.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class View> struct AddTo { View to; };
/// As a destination of gradients: they are added to what x holds.
template <detail::LastingView Owner> [[nodiscard]] constexpr auto add_to(Owner&& owner) {
  return AddTo<detail::ViewOf<Owner>>{view(std::forward<Owner>(owner))};
}

}  // namespace mha::inline MHA_NAMESPACE
