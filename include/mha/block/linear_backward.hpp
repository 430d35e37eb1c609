// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "../backend/epilogue_backward.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"
#include "../policy/dropout.hpp"
#include "cost.hpp"
#include "dense_backward.hpp"
#include "kept_arrays.hpp"
#include "linear_weights.hpp"
#include "rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a call of a Linear leaves for its backward pass. Calls reuse its memory; one tape serves any Linears of this
/// scalar and backend on one device, the last call counts.
///
/// Keeps     what the activation was applied to, in accumulators; nothing without an activation
/// Borrows   x, which must stay as it was until backward() has run
template <class T, class B> class LinearTape {
  using A = Accumulator<T>;

 public:
  static constexpr bool is_call_tape = true;

  LinearTape() = default;
  LinearTape(LinearTape&& other) noexcept
      : version_(std::exchange(other.version_, 0)),
        x_(other.x_),
        sums_(other.sums_),
        draws_(other.draws_),
        arrays_(std::move(other.arrays_)) {}
  LinearTape& operator=(LinearTape&& other) noexcept {
    version_ = std::exchange(other.version_, 0);
    x_ = other.x_;
    sums_ = other.sums_;
    draws_ = other.draws_;
    arrays_ = std::move(other.arrays_);
    return *this;
  }
  ~LinearTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return version_ != 0; }

 private:
  template <class, class, class, class...> friend class Linear;
  template <class, class, class, class...> friend class FeedForward;

  std::uint64_t version_ = 0;  // of the weights
  TensorView<const T, 3> x_{};
  std::array<TensorView<A, 2>, 2> sums_{};  // the gate's first
  DropoutDraws draws_;                      // of the results
  detail::KeptArrays<A, B> arrays_;
};

namespace detail {

/// Memory for what the activation F of so many results is applied to, the gate's first.
template <class B, class F, class A, class Kept>
std::array<TensorView<A, 2>, 2> sums_for(Kept& kept, Index rows, Index columns) {
  std::array<TensorView<A, 2>, 2> sums{};
  if constexpr (!std::is_same_v<F, Identity>)
    take_sums<B, A>(kept, rows, columns, std::span<TensorView<A, 2>>(sums).last(is_gated<F> ? 2 : 1));
  return sums;
}

/// The backward pass of activation(x W + b), or of activation(x W_g + b_g) ∘ (x W + b), from the sums that the
/// activation was applied to.
///
/// Formula   d = dy F′(sum), or as EpilogueBackwardCall says;  dW += xᵀ d, db += Σ d, dx = d Wᵀ, and those of the gate
/// Shapes    x (B, L, in)  dy (B, L, out)  dx as x
/// Weights   w where the backend reads them
/// Numerics  as DenseBackward
template <class T, class B, class F>
void linear_backward(const B& backend, const F& activation, const LinearViews<const T>& w,
                     const TensorView<const T, 3>& x, const std::array<TensorView<Accumulator<T>, 2>, 2>& sums,
                     const TensorView<const T, 3>& dy, const LinearViews<Accumulator<T>>& gradients,
                     const RowGradient<T>& dx, typename B::Workspace& workspace) {
  using R = typename DenseBackward<T, B>::Gradient;
  if (dy.extent[0] * dy.extent[1] == 0) return;
  auto frame = workspace.frame();
  const ItemsOn<B> items{backend, workspace};
  const DenseBackward<T, B> dense(backend, workspace);
  TensorView<const R, 2> d = dense.gradient(as_rows(dy, frame, items), frame);
  if constexpr (!std::is_same_v<F, Identity>) {
    const Index rows = d.extent[0], columns = d.extent[1], width = is_gated<F> ? 2 * columns : columns;
    checked_product("backward", "the memory of the sums' gradients", {rows, width});
    R* const at = frame.template take<R>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
    // Side by side, so that one product makes the gradients of both matrices.
    const TensorView<R, 2> d_gate{is_gated<F> ? at : nullptr, {rows, columns}, {width, 1}},
        d_sum{at + width - columns, {rows, columns}, {width, 1}};
    run_epilogue_backward(
        backend, EpilogueBackwardCall<Accumulator<T>, F, R>{activation, sums[0], sums[1], d, d_gate, d_sum}, workspace);
    d = {at, {rows, width}, {width, 1}};
  }
  const DensePart<T> parts[] = {output_part<T>(w.gate, gradients.gate, gradients.gate_bias),
                                output_part<T>(w.weight, gradients.weight, gradients.bias)};
  const auto own = std::span(parts).last(is_gated<F> ? 2 : 1);
  dense.add_weights(as_rows(x, frame, items), d, own);
  into_rows(
      dx, frame, [&](const TensorView<T, 2>& rows) { dense.rows(d, own, rows); }, items);
}

/// What it costs where the call costs `forward`; with dropout, of calls that drop. A device copies x too, and keeps the
/// gradients in T.
template <class T, class B, class F>
BackwardStageCost linear_backward_cost(const StageCost& forward, const LinearConfig& c, Index rows, bool drops) {
  using A = Accumulator<T>;
  constexpr int matrices = is_gated<F> ? 2 : 1;
  const double n = rows, in = c.inputs, out = c.outputs, of_results = n * out * sizeof(A);
  const double sums = std::is_same_v<F, Identity> ? 0 : matrices * of_results;
  return {{forward.parameters, 2 * forward.flop,
           sizeof(T) * (matrices * in * out + n * (2 * in + out)) + sizeof(A) * double(forward.parameters) + sums},
          sums,
          (computes_on_host<B> ? sums + (std::is_same_v<T, A> ? 0 : of_results)
                               : sums / sizeof(A) * sizeof(T) + n * in * sizeof(T)) +
              (drops ? n * out * sizeof(T) : 0)};
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
