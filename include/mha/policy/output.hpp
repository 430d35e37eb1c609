// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What follows the concatenation.
template <class P>
concept Output = plays<P, Role::output>;

/// Y = concat(heads) W_O + b_O, back to d_model.
struct LinearOutput {
  static constexpr Role role = Role::output;
  static constexpr const char* name = "LinearOutput";
  static constexpr bool has_weights = true;
  static constexpr Index width(Index, Index d_model) { return d_model; }
};

/// The concatenated heads are the result, (L, Hq·Dv); the layer has no output weights.
struct NoOutput {
  static constexpr Role role = Role::output;
  static constexpr const char* name = "NoOutput";
  static constexpr bool has_weights = false;
  static constexpr Index width(Index concat_width, Index) { return concat_width; }
};

}  // namespace mha::inline MHA_NAMESPACE
