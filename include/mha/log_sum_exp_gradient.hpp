// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "call.hpp"
#include "core/check.hpp"
#include "core/scalar.hpp"
#include "core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The gradient of the loss with respect to the log-sum-exps of a call, for attention_backward() and a layer's
/// backward().
///
/// Shapes    as LogSumExp
template <class A> struct LogSumExpGradient {
  TensorView<const A, 3> from;

  template <ViewableOfRank<1, 2, 3> Owner>
  requires(!std::same_as<std::remove_cvref_t<Owner>, LogSumExpGradient>) constexpr explicit LogSumExpGradient(
      Owner&& owner)
      : from(detail::row_axes(view(std::forward<Owner>(owner)))) {}
};
template <Viewable Owner> LogSumExpGradient(Owner&&) -> LogSumExpGradient<ScalarOf<Owner>>;

namespace detail {

template <class T> constexpr bool is_log_sum_exp_gradient = false;
template <class A> constexpr bool is_log_sum_exp_gradient<LogSumExpGradient<A>> = true;
template <class E>
concept LogSumExpGradientArgument = is_log_sum_exp_gradient<std::remove_cvref_t<E>>;

/// The call's LogSumExpGradient, or one without data.
template <class A> constexpr TensorView<const A, 3> given_d_log_sum_exp() { return {}; }
template <class A, class E, class... Rest>
constexpr TensorView<const A, 3> given_d_log_sum_exp(const E& first, const Rest&... rest) {
  if constexpr (LogSumExpGradientArgument<E>) {
    static_assert(std::same_as<E, LogSumExpGradient<A>>,
                  "mha: LogSumExpGradient has the accumulator's scalar: float for half, bfloat16 and float, else the "
                  "scalar itself (see mha/log_sum_exp_gradient.hpp)");
    if constexpr (std::same_as<E, LogSumExpGradient<A>>)
      return first.from;
    else
      return {};
  } else {
    return given_d_log_sum_exp<A>(rest...);
  }
}

/// It has a number for each row of the heads of a call.
template <class T, class A>
void require_log_sum_exp_gradient(const char* call, const char* of, const TensorView<const T, 4>& heads,
                                  const TensorView<const A, 3>& d) {
  require_data(call, "LogSumExpGradient", d);
  require_equal(call, "batch", of, heads.batch(), "LogSumExpGradient", d.extent[0]);
  require_equal(call, "heads", of, heads.heads(), "LogSumExpGradient", d.extent[1]);
  require_equal(call, "length", of, heads.length(), "LogSumExpGradient", d.extent[2]);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
