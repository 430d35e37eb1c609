// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline v0 {

/// How the head outputs (B, L, H, Dv) become rows (B, L, H·Dv). The layout makes the concatenation itself free.
template <class P>
concept Concat = plays<P, Role::concat>;

/// The heads side by side.
///
/// Source    Vaswani et al. 2017, §3.2.2
struct ConcatHeads {
  static constexpr Role role = Role::concat;
  static constexpr const char* name = "ConcatHeads";
  static constexpr bool has_gates = false;
};

/// Each head's output times a learned number of its own: a head whose gate is 0 is switched off.
///
/// Shapes    gate (Hq)
/// Source    Michel et al. 2019, eq. 2
struct GatedHeads {
  static constexpr Role role = Role::concat;
  static constexpr const char* name = "GatedHeads";
  static constexpr bool has_gates = true;

  template <class T> static void apply(const TensorView<T, 4>& heads, const TensorView<const T, 1>& gate) {
    using A = Accumulator<T>;
    for (Index b = 0; b < heads.batch(); ++b)
      for (Index l = 0; l < heads.length(); ++l)
        for (Index h = 0; h < heads.heads(); ++h)
          for (Index d = 0; d < heads.dim(); ++d) heads(b, l, h, d) = T(A(heads(b, l, h, d)) * A(gate(h)));
  }
};

}  // namespace mha::inline v0
