// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "../core/check.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline v0 {

/// The weights that make one of Q, K, V from model rows: a matrix per head, one beside or after the other in memory.
///
/// Shapes    heads (H, E, D)  bias (H, D), null data for none
template <class T> struct HeadWeights {
  TensorView<T, 3> heads;
  TensorView<T, 2> bias;

  Index head_count() const { return heads.extent[0]; }
  Index model() const { return heads.extent[1]; }
  Index head_dim() const { return heads.extent[2]; }

  /// Head h: (E, D).
  TensorView<T, 2> head(Index h) const {
    return {heads.data + h * heads.stride[0], {model(), head_dim()}, {heads.stride[1], heads.stride[2]}};
  }
  TensorView<T, 1> head_bias(Index h) const {
    if (bias.data == nullptr) return {};
    return {bias.data + h * bias.stride[0], {head_dim()}, {bias.stride[1]}};
  }

  /// Whether the heads lie side by side, as columns of one matrix.
  bool is_matrix() const {
    if (head_count() == 1) return true;
    return heads.stride[0] == head_dim() * heads.stride[2] &&
           (bias.data == nullptr || bias.stride[0] == head_dim() * bias.stride[1]);
  }

  /// All heads as one matrix (E, H·D), head h in columns [h·D, (h+1)·D).
  ///
  /// Errors    ShapeError if each head has memory of its own (PerHeadProjection)
  TensorView<T, 2> matrix() const {
    detail::require(is_matrix(), "HeadWeights: the ", head_count(), " heads lie ", heads.stride[0],
                    " elements apart, side by side would be ", head_dim() * heads.stride[2],
                    ": ask for head(h) instead");
    return {heads.data, {model(), head_count() * head_dim()}, {heads.stride[1], heads.stride[2]}};
  }
  /// All biases as one row (H·D), null data for none.
  TensorView<T, 1> bias_row() const {
    if (bias.data == nullptr) return {};
    return {bias.data, {head_count() * head_dim()}, {bias.stride[1]}};
  }

  /// Read-only from writable. A template, because nvcc warns on a plain conversion to the same type.
  template <class U>
  requires(std::same_as<U, const T> && !std::is_const_v<T>) operator HeadWeights<U>() const { return {heads, bias}; }
};

/// One of a projection's dense products: rows (·, E) · matrix (E, columns) + bias → columns [first, first + columns).
template <class T> struct ProjectionProduct {
  TensorView<const T, 2> matrix;
  TensorView<const T, 1> bias;
  Index first_column = 0;
};

/// How Q, K and V are made from model rows: the memory layout of a layer's own weights, and the products to run.
template <class P>
concept Projection = plays<P, Role::projection>;

/// One product for all heads; the weights are one matrix (E, H·D).
struct FusedProjection {
  static constexpr Role role = Role::projection;
  static constexpr const char* name = "FusedProjection";

  /// Where head weights of a layer lie in a flat array.
  template <class T> static TensorView<T, 3> layout(T* data, Index heads, Index model, Index head_dim) {
    return {data, {heads, model, head_dim}, {head_dim, std::ptrdiff_t{heads} * head_dim, 1}};
  }

  template <class T, class F> static void for_each_product(const HeadWeights<const T>& w, F&& f) {
    if (w.is_matrix()) {
      f(ProjectionProduct<T>{w.matrix(), w.bias_row(), 0});
    } else {
      for (Index h = 0; h < w.head_count(); ++h) f(ProjectionProduct<T>{w.head(h), w.head_bias(h), h * w.head_dim()});
    }
  }
};

/// One product per head, each with a matrix (E, D) of its own, as the formulas are written. The values are those of
/// FusedProjection; it suits weights that come head by head.
struct PerHeadProjection {
  static constexpr Role role = Role::projection;
  static constexpr const char* name = "PerHeadProjection";

  template <class T> static TensorView<T, 3> layout(T* data, Index heads, Index model, Index head_dim) {
    return {data, {heads, model, head_dim}, {std::ptrdiff_t{model} * head_dim, head_dim, 1}};
  }

  template <class T, class F> static void for_each_product(const HeadWeights<const T>& w, F&& f) {
    for (Index h = 0; h < w.head_count(); ++h) f(ProjectionProduct<T>{w.head(h), w.head_bias(h), h * w.head_dim()});
  }
};

}  // namespace mha::inline v0
