// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "role.hpp"

namespace mha::inline v0 {

/// The heads side by side: (B, L, H, Dv) read as (B, L, H·Dv). The layout makes it free; nothing moves.
///
/// Source    Vaswani et al. 2017, §3.2.2
struct ConcatHeads {
  static constexpr Role role = Role::concat;
  static constexpr const char* name = "ConcatHeads";
  static constexpr Index width(Index heads, Index value_dim) { return heads * value_dim; }
};

}  // namespace mha::inline v0
