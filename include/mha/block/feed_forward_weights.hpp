// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "linear_weights.hpp"
#include "parts.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The sizes of a FeedForward.
struct FeedForwardConfig {
  Index d_model = 0;   ///< the width of its rows and of its results
  Index d_hidden = 0;  ///< the width between its two products
  bool bias = true;    ///< whether both products add one
};

/// Named views of a FeedForward's parameters, or of their gradients.
///
/// Shapes    up (d_model, d_hidden) and down (d_hidden, d_model), each as the LinearViews of its Linear
template <class T> struct FeedForwardViews {
  LinearViews<T> up, down;
  std::span<T> all;

  /// Every gradient in one row, that of up first.
  ///
  /// Errors    ShapeError for parameters, which are two rows, up.flat() and down.flat(), or borrowed
  std::span<T> flat() const {
    detail::require(up.weight.data == nullptr || !all.empty(),
                    "parameters: flat() has nothing to show, because the weights of up and down are not in one row: "
                    "read up.flat() and down.flat()");
    return detail::flat_of(up.weight.data != nullptr, all);
  }

  /// step(numbers, their gradients), spans of one length, of up and then of down. Gradients are a FeedForward's, or
  /// have .up and .down that are a Linear's.
  ///
  /// Errors    as flat() of up and down; ShapeError for gradients of other sizes, before the first step
  template <class Gradients, class Step> void for_each(const Gradients& gradients, Step&& step) const {
    if constexpr (!requires { gradients.up; }) {
      static_cast<void>(gradients.flat());  // of a device: refused there
    } else {
      const auto of_up = detail::checked_gradients("for_each: up", up, gradients.up);
      const auto of_down = detail::checked_gradients("for_each: down", down, gradients.down);
      detail::run_step(step, up.flat(), of_up);
      detail::run_step(step, down.flat(), of_down);
    }
  }
};

/// Weights of a FeedForward that stay where they are:
/// feed_forward.borrow({.up = {.weight = …, .bias = …}, .down = {.weight = …, .bias = …}}).
///
/// Shapes    up (d_model, d_hidden), with Gated<F> its gate too; down (d_hidden, d_model); biases as those of Linears
/// Scalars   the FeedForward's own; or half or bfloat16 under float or double
template <class T> struct BorrowedFeedForward { BorrowedLinear<T> up{}, down{}; };

namespace detail {

/// Linears are as the configuration says: another may have been assigned to one.
inline void require_sizes(const char* call, const FeedForwardConfig& c, const LinearConfig& up,
                          const LinearConfig& down) {
  const auto same = [call](const char* part, const char* axis, Index is, const char* name, Index expected) {
    require(is == expected, call, ": ", part, " has ", is, " ", axis, " but ", name, " is ", expected);
  };
  same("up()", "inputs", up.inputs, "d_model", c.d_model);
  same("up()", "outputs", up.outputs, "d_hidden", c.d_hidden);
  same("down()", "inputs", down.inputs, "d_hidden", c.d_hidden);
  same("down()", "outputs", down.outputs, "d_model", c.d_model);
}

/// What holds the memory of weights that both or one of two Linears borrow already; null if nothing does.
///
/// Errors    ShapeError if they are one's own
template <class T, bool gated>
std::shared_ptr<const void> keeper_of(const LinearParameters<T, gated>& up, const LinearParameters<T, false>& down,
                                      const LinearViews<const T>& part, const char* call) {
  up.require_foreign(part, call);
  down.require_foreign(part, call);
  const std::shared_ptr<const void> of_up = up.keeper_of(part), of_down = down.keeper_of(part);
  if (of_up == nullptr || of_down == nullptr || of_up == of_down) return of_up != nullptr ? of_up : of_down;
  return std::make_shared<std::pair<decltype(of_up), decltype(of_down)>>(of_up, of_down);
}

template <class T> struct PartsOf<FeedForwardViews<T>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    PartsOf<LinearViews<T>>::each(f, v.up...);
    PartsOf<LinearViews<T>>::each(f, v.down...);
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
