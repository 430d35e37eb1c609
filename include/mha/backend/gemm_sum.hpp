// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "backend.hpp"

/// Products that are added to what is there: how the gradients of weights add up where the host's memory ends.
namespace mha::inline MHA_NAMESPACE {

/// c += a · b.
///
/// Shapes    a (M, K)  b (K, N)  c (M, N); any strides
/// Numerics  sums in Accumulator<T>, the same bits run after run
template <class T> struct GemmSumCall {
  TensorView<const T, 2> a, b;
  TensorView<Accumulator<T>, 2> c;
};

/// A backend with memory of its own that has what the backward pass of dense products needs there beside gemm(): this
/// product, and weights that it packed as matrices (K, N), those of one depth side by side, `columns(first, last)`.
template <class B, class T>
concept SumsProducts = PacksWeights<B, T> &&
    requires(const B backend, const GemmSumCall<T>& call, typename B::Workspace& workspace,
             const typename detail::PackedBy<T, B>::type& packed, std::size_t part) {
  backend.gemm(call, workspace);
  { packed.columns(part, part) } -> std::same_as<DenseWeights<T>>;
};

}  // namespace mha::inline MHA_NAMESPACE
