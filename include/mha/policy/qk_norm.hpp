// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "../core/check.hpp"
#include "../core/dual.hpp"
#include "../core/items.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What is done to each head's query and key rows after the projection and before the position, in place:
/// `auto items(TensorView<T, 4> x, TensorView<const T, 1> weight) const` gives it as Items (core/items.hpp).
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
/// Formula   x / √(mean(x²) + eps) · weight;  with zero_centered · (1 + weight)
/// Errors    ShapeError if eps is negative or not finite, when a layer is made of it
/// Source    Dehghani et al. 2023 §2; as in Qwen 3 and, zero-centred, Gemma 3
struct QkNorm {
  static constexpr Role role = Role::norm;
  static constexpr const char* name = "QkNorm";
  static constexpr bool has_weights = true;
  double eps = 1e-6;
  bool zero_centered = false;  ///< weights are stored less 1, as in Gemma 3's checkpoints

  friend bool operator==(const QkNorm&, const QkNorm&) = default;

  void check() const {
    detail::require(eps >= 0 && std::isfinite(eps), "QkNorm: eps is ", eps, ", it must be a finite number, 0 or above");
  }

  /// What a row is multiplied by where this weight is stored.
  template <class A> MHA_HOST_DEVICE static A factor(const A& weight, bool zero_centered) {
    return zero_centered ? A(1) + weight : weight;
  }

  /// One head's row each.
  template <class T> struct Rows {
    std::ptrdiff_t rows;
    Index columns, cost;
    TensorView<T, 4> x;
    TensorView<const T, 1> weight;
    Accumulator<T> eps;
    bool zero_centered;

    MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index h) const {
      using A = Accumulator<T>;
      using mha::sqrt;
      const Index b = static_cast<Index>(row / x.extent[1]), l = static_cast<Index>(row % x.extent[1]);
      A sum(0);
      for (Index d = 0; d < x.extent[3]; ++d) sum += A(x(b, l, h, d)) * A(x(b, l, h, d));
      const A inverse = A(1) / sqrt(sum / A(x.extent[3]) + eps);
      for (Index d = 0; d < x.extent[3]; ++d)
        x(b, l, h, d) = T(A(x(b, l, h, d)) * inverse * factor(A(weight(d)), zero_centered));
    }
  };

  /// Shapes    x (B, L, H, D), in place  weight (D)
  template <class T> Rows<T> items(const TensorView<T, 4>& x, const TensorView<const T, 1>& weight) const {
    return {std::ptrdiff_t{x.batch()} * x.length(), x.heads(),    2 * x.dim(), x, weight,
            static_cast<Accumulator<T>>(eps),       zero_centered};
  }

  /// One head's row of the backward pass: d, the gradient of the result, becomes that of x, and what the row adds to
  /// the gradient of the weight is added to sums.
  ///
  /// Formula   with r = 1 / √(mean(x²) + eps): dw = d ∘ x · r,  dx = r (d ∘ w − x · r² · mean(x ∘ d ∘ w)); with
  ///           zero_centered 1 + w for w
  /// Numerics  a row whose d is exactly 0 contributes nothing, whatever x is
  template <class T, class Sum>
  MHA_HOST_DEVICE void row_backward(const T* x, std::ptrdiff_t step, const TensorView<const T, 1>& weight,
                                    Accumulator<T>* d, Sum* sums) const {
    using A = Accumulator<T>;
    using mha::sqrt;
    const Index n = weight.extent[0];
    bool any = false;
    for (Index i = 0; i < n; ++i) any = any || !(d[i] == A(0));
    if (!any) return;
    A square(0), along(0);
    for (Index i = 0; i < n; ++i) {
      const A z(x[i * step]);
      square += z * z;
      along += z * d[i] * factor(A(weight(i)), zero_centered);
    }
    const A inverse = A(1) / sqrt(square / A(n) + static_cast<A>(eps));
    const A back = inverse * inverse * along / A(n);
    for (Index i = 0; i < n; ++i) {
      const A z(x[i * step]);
      sums[i] += Sum(d[i] * z * inverse);
      d[i] = inverse * (d[i] * factor(A(weight(i)), zero_centered) - z * back);
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE
