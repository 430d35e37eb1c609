// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/activation_derivative.hpp"
#include "backend.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The backward pass of an epilogue, of gradients to the results of a product.
///
/// Formula   d_sum = dy F′(sum);  with Gated<F>: d_sum = dy F(gate), d_gate = dy ∘ sum ∘ F′(gate)
/// Shapes    all (M, N), rows contiguous; gate and d_gate null data unless gated, with the rows of sum and d_sum
///           as far apart as those
/// Scalars   R, that of the gradients, is A or a narrower one, in which they are rounded once
/// Numerics  where dy is exactly 0 the gradients are, whatever the sums
template <class A, class Activation, class R = A> struct EpilogueBackwardCall {
  Activation activation;
  TensorView<const A, 2> gate, sum;
  TensorView<const R, 2> dy;
  TensorView<R, 2> d_gate, d_sum;
};

namespace detail {

/// The same as items, for any backend.
template <class A, class F, class R = A> struct EpilogueBackwardItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  EpilogueBackwardCall<A, F, R> call;

  explicit EpilogueBackwardItems(const EpilogueBackwardCall<A, F, R>& c)
      : rows(c.sum.extent[0]), columns(c.sum.extent[1]), cost(32), call(c) {}

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    const A d(call.dy(row, column));
    if constexpr (is_gated<F>) {
      const A gate = call.gate(row, column);
      call.d_sum(row, column) = R(gradient_times(d, static_cast<A>(call.activation.activation(gate))));
      call.d_gate(row, column) =
          R(gradient_times(d, A(call.sum(row, column) * derivative_at(call.activation.activation, gate))));
    } else {
      call.d_sum(row, column) = R(gradient_times(d, derivative_at(call.activation, A(call.sum(row, column)))));
    }
  }
};

/// A backend with a kernel for it.
template <class B, class A, class F>
concept DifferentiatesEpilogue = requires(const B backend, const EpilogueBackwardCall<A, F>& call) {
  backend.differentiate(call);
};
/// A backend that finishes sums of a product in accumulators with the bits of its fused epilogue.
template <class B, class T, class F>
concept FinishesSums = requires(const B backend, const Epilogue<T, F>& epilogue,
                                const TensorView<const Accumulator<T>, 2>& from, const TensorView<T, 2>& to,
                                typename B::Workspace& workspace) {
  backend.finish(epilogue, from, from, to, workspace);
};

template <class B, class A, class F, class R>
void run_epilogue_backward(const B& backend, const EpilogueBackwardCall<A, F, R>& call,
                           typename B::Workspace& workspace) {
  if (call.sum.size() == 0) return;
  if constexpr (std::is_same_v<R, A> && DifferentiatesEpilogue<B, A, F>)
    backend.differentiate(call);
  else
    ItemsOn<B>{backend, workspace}(EpilogueBackwardItems<A, F, R>(call));
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
