// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "../backend/backend.hpp"
#include "../backend/default.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"
#include "../policy/activation.hpp"
#include "../policy/dropout.hpp"
#include "arguments.hpp"
#include "recording.hpp"
#include "rows.hpp"

/// What a Linear and a FeedForward are made of and called with, and what is refused.
namespace mha::inline MHA_NAMESPACE::detail {

/// The activation in the list, else a new one.
///
/// Errors    ShapeError if it is a pointer to a function or a std::function that is null, or Gated of one
template <class F, class... Values> F given_activation(const Values&... values) {
  F activation = given_or_default<F>(values...);
  if constexpr (is_gated<F>)
    require_function("activation", activation.activation);
  else
    require_function("activation", activation);
  return activation;
}

/// The sentence for the values that a constructor is given.
template <class B, class F, class... Values> constexpr void check_linear_values() {
  static_assert(((std::same_as<Values, F> || std::same_as<Values, B> || std::same_as<Values, Dropout>)&&...),
                "mha: the constructor of a Linear takes a backend and an activation of the types that it names: "
                "Linear<float, mha::CpuWith<mha::Serial>, mha::Gelu>, and a Dropout (see mha/block/linear.hpp)");
  static_assert(at_most_one<std::same_as<Values, F>...> && at_most_one<std::same_as<Values, B>...> &&
                    at_most_one<std::same_as<Values, Dropout>...>,
                "mha: the constructor of a Linear takes a backend, an activation and a Dropout once each "
                "(see mha/block/linear.hpp)");
}

/// The sentences for the template arguments of a Linear or a FeedForward, which takes no others.
template <class B, class F, class... Others> constexpr bool check_linear_types() {
  static_assert(is_defined<B>,
                "mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic, <mha/cuda.cuh> "
                "for Cuda, <mha/mha.hpp> for Cpu (see mha/backend/default.hpp)");
  static_assert(Backend<B> || !is_defined<B>,
                "mha: the second template argument is no backend; one comes before the activation: "
                "Linear<float, mha::Cpu, mha::Gelu> (see mha/backend/backend.hpp)");
  // Of a backend and an activation that are swapped, the sentence above is enough.
  if constexpr (!(Backend<F> && std::same_as<OrNoBackend<B>, NoBackend<false>>)) check_activation<F>();
  static_assert(sizeof...(Others) == 0,
                "mha: the type of a Linear or FeedForward names a scalar, a backend and an activation; Dropout is a "
                "value, FeedForward<float> ff({…}, mha::Dropout{.p = 0.1f}) (see mha/block/linear.hpp)");
  return true;
}

/// The sentences for what a call of a Linear or a FeedForward is given after x.
template <class B, class X, class... Extra> constexpr void check_linear_arguments() {
  check_memory_of<B, X>();
  static_assert(
      ((ResidualArgument<Extra> || IntoArgument<Extra> || WorkspaceArgument<Extra> || BackendArgument<Extra> ||
        CallTapeArgument<Extra> || DropoutSeedArgument<Extra> || RefusedArgument<Extra>)&&...),
      "mha: after x a Linear or FeedForward takes mha::residual(r), mha::into(y), a DropoutSeed, a Workspace "
      "and a backend, and to be differentiated a tape (see mha/block/linear.hpp)");
  static_assert(at_most_one<ResidualArgument<Extra>...> && at_most_one<IntoArgument<Extra>...> &&
                    at_most_one<WorkspaceArgument<Extra>...> && at_most_one<BackendArgument<Extra>...> &&
                    at_most_one<DropoutSeedArgument<Extra>...>,
                "mha: mha::residual(r), mha::into(y), a DropoutSeed, a Workspace and a backend may be given once each "
                "(see mha/block/linear.hpp)");
}
/// The sentences for what they cannot be called on.
template <class T, class X> Refused refuse_rows() {
  static_assert(Sequence<X>,
                "mha: a Linear or FeedForward takes x with 2 or 3 axes: an Eigen matrix, an mha::Tensor or a view of a "
                "pointer, mha::view(p, L, in); an Eigen expression is computed first, linear((2 * x).eval()) "
                "(see mha/block/linear.hpp)");
  static_assert(!Sequence<X>,
                "mha: the Linear's scalar and the input's differ: convert the input, such as "
                "linear(x.cast<T>().eval()) for a Linear of T (see mha/block/linear.hpp)");
  return {};
}

/// The result's or residual's rows are as many as x has, this wide, and where the backend reaches them.
template <class T, class B, class View>
void require_like(const char* call, const B& backend, const char* name, const TensorView<const T, 3>& x,
                  const View& rows, Index width) {
  require_data(call, name, rows);
  require_equal(call, "batch", "x", x.extent[0], name, rows.extent[0]);
  require_equal(call, "length", "x", x.extent[1], name, rows.extent[1]);
  require(rows.extent[2] == width, call, ": ", name, " has width ", rows.extent[2], ", expected ", width);
  require_reachable(backend, call, name, rows);
}

/// The rows of x are this wide, not too many, and where the backend reaches them; `width` is what says so.
template <class T, class B>
void check_linear_rows(const char* call, const char* width, const B& backend, const TensorView<const T, 3>& x,
                       Index inputs) {
  require_rows(call, "x", x, width, inputs);
  require_supported(backend, call);
  require_reachable(backend, call, "x", x);
}

}  // namespace mha::inline MHA_NAMESPACE::detail
