// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "../core/check.hpp"
#include "../core/dual.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline v0 {

/// What is done to each head's query and key rows after the projection and before the position.
template <class P>
concept Norm = plays<P, Role::norm>;

/// Rows as the projection made them.
struct NoNorm {
  static constexpr Role role = Role::norm;
  static constexpr const char* name = "NoNorm";
  static constexpr bool has_weights = false;
};

/// Root-mean-square norm of q and k over the head's axis, with a learned weight (D) each.
///
/// Formula   x / √(mean(x²) + eps) · weight
/// Source    Dehghani et al. 2023 §2; as in Qwen 3
struct QkNorm {
  static constexpr Role role = Role::norm;
  static constexpr const char* name = "QkNorm";
  static constexpr bool has_weights = true;
  double eps = 1e-6;

  void check() const {
    detail::require(eps >= 0 && std::isfinite(eps), "QkNorm: eps is ", eps, ", it must be a finite number, 0 or above");
  }

  /// Shapes    x (B, L, H, D), in place  weight (D)
  template <class T> void apply(const TensorView<T, 4>& x, const TensorView<const T, 1>& weight) const {
    using A = Accumulator<T>;
    using mha::sqrt;
    for (Index b = 0; b < x.batch(); ++b)
      for (Index l = 0; l < x.length(); ++l)
        for (Index h = 0; h < x.heads(); ++h) {
          A sum(0);
          for (Index d = 0; d < x.dim(); ++d) sum += A(x(b, l, h, d)) * A(x(b, l, h, d));
          const A inverse = A(1) / sqrt(sum / A(x.dim()) + static_cast<A>(eps));
          for (Index d = 0; d < x.dim(); ++d) x(b, l, h, d) = T(A(x(b, l, h, d)) * inverse * A(weight(d)));
        }
  }
};

}  // namespace mha::inline v0
