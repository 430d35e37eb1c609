// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "../core/check.hpp"
#include "../core/view.hpp"
#include "parts.hpp"
#include "weight_view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a norm is made of.
struct NormConfig {
  Index width = 0;              ///< E, of the rows
  std::optional<double> eps{};  ///< beneath the root: 1e-5 for LayerNorm, 1e-6 for RmsNorm if not given
  std::optional<bool> bias{};   ///< with one for LayerNorm, without for RmsNorm if not given
  bool zero_centered = false;   ///< the weight is stored less 1, as in Gemma's checkpoints: n · (1 + weight)
};

/// Named views of a norm's parameters.
///
/// Shapes    weight (E)  bias (E), null data without one
template <class T> struct NormViews {
  TensorView<T, 1> weight, bias;
  std::span<T> all;

  /// Every number in one row, for an optimiser: weight, bias.
  ///
  /// Errors    ShapeError if they are borrowed: those have names only; or if the norm was moved from
  std::span<T> flat() const {
    detail::require(weight.data != nullptr, "parameters: flat() has nothing to show, because the norm was moved from");
    return detail::in_one_row(all);
  }

  /// step(numbers, their gradients), spans of one length, as for_each() of a layer's parameters.
  ///
  /// Errors    as flat(); ShapeError for gradients of other sizes, before the first step
  template <class Gradients, class Step> void for_each(const Gradients& gradients, Step&& step) const {
    const auto d = detail::checked_gradients("for_each", *this, gradients);
    detail::run_step(step, flat(), d);
  }
};

/// Parameters of a norm that stay where they are.
///
/// Shapes    weight, bias (E)
template <class T> struct BorrowedNorm { WeightView<T, 1> weight{}, bias{}; };

namespace detail {

template <class T> struct PartsOf<NormViews<T>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    f("weight", v.weight...), f("bias", v.bias...);
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
