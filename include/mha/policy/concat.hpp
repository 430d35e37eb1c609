// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../core/items.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// How the head outputs (B, L, H, Dv) become rows (B, L, H·Dv). The layout makes the concatenation itself free; what
/// happens to the numbers on the way is `static auto items(heads, gate)`, as Items (core/items.hpp).
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

  /// Rows are those of every head.
  template <class T> struct Gate {
    std::ptrdiff_t rows;
    Index columns, cost;
    TensorView<T, 4> heads;
    TensorView<const T, 1> gate;

    MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index d) const {
      using A = Accumulator<T>;
      const Index h = static_cast<Index>(row % heads.extent[2]);
      row /= heads.extent[2];
      T& x = heads(row / heads.extent[1], row % heads.extent[1], h, d);
      x = T(A(x) * A(gate(h)));
    }
  };

  template <class T> static Gate<T> items(const TensorView<T, 4>& heads, const TensorView<const T, 1>& gate) {
    return {std::ptrdiff_t{heads.batch()} * heads.length() * heads.heads(), heads.dim(), 1, heads, gate};
  }

  /// One row of one head in the backward pass: d, the gradient of the gated row, becomes that of the row before its
  /// gate; returns what is added to the gate's gradient. A row whose d is exactly 0 adds nothing, whatever x is.
  template <class T, class Sum> MHA_HOST_DEVICE static Sum row_backward(const T* x, Index n, const T& gate, T* d) {
    using A = Accumulator<T>;
    Sum sum(0);
    for (Index i = 0; i < n; ++i) {
      const A given(d[i]);
      if (!(given == A(0))) sum += Sum(given * A(x[i]));
      d[i] = T(given * A(gate));
    }
    return sum;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
