// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// at(i, j) = from(i, j) for weights of T (in, out) in the memory of `to`, converted where the scalars differ.
///
/// Errors    ShapeError if the matrix has another shape or lies in that memory; nothing is written then
template <class T, class Matrix, class View, class At>
void write_weights(const Matrix& from, Index in, Index out, const View& to, const At& at) {
  constexpr bool writable = !std::is_const_v<T>;
  constexpr bool matrix = ViewableOfRank<Matrix, 2> && may_lie_in<Matrix, Memory::host>();
  static_assert(writable,
                "mha: parameters() are read-only: write weights by layer.update([&](auto& p) { p.query = matrix; }) "
                "(see mha/layer/parameter_views.hpp)");
  static_assert(matrix,
                "mha: p.query, key, value and output are written from a matrix (in, out) in the host's memory: an "
                "Eigen matrix, an mha::Tensor or a view, no expression (see mha/layer/parameter_views.hpp)");
  if constexpr (writable && matrix) {
    const auto v = ViewTraits<Matrix>::view(from);
    require_data("update", "the matrix", v);
    require(v.extent[0] == in && v.extent[1] == out, "update: the matrix is (", v.extent[0], ", ", v.extent[1],
            "), expected (", in, ", ", out, ")",
            v.extent[0] == out && v.extent[1] == in ? ": assign its transpose, mha::transposed(view)" : "");
    require(!may_overlap(v, to), "update: the matrix (", in, ", ", out,
            ") lies in the weights that it is assigned to, which would change it: copy it first");
    for (Index i = 0; i < in; ++i)
      for (Index j = 0; j < out; ++j) at(i, j) = static_cast<T>(static_cast<Accumulator<T>>(v(i, j)));
  }
}

}  // namespace detail

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

  /// Writes all heads from a matrix (E, H·D) of any scalar, laid out as matrix() is: p.query = m.
  ///
  /// Errors    ShapeError if the matrix has another shape or lies in these weights; nothing is written then
  template <class Matrix>
  requires(!std::convertible_to<const Matrix&, HeadWeights> || std::same_as<Matrix, HeadWeights>) const HeadWeights&
  operator=(const Matrix& from) const {
    detail::write_weights<T>(from, model(), head_count() * head_dim(), heads, [this](Index e, Index column) -> T& {
      return heads(column / head_dim(), e, column % head_dim());
    });
    return *this;
  }

  /// Read-only from writable. A template, because nvcc warns on a plain conversion to the same type.
  template <class U>
  requires(std::same_as<U, const T> && !std::is_const_v<T>) operator HeadWeights<U>() const { return {heads, bias}; }
};

/// How the weights of Q, K and V that a layer owns lie in memory. The values are the same for all.
template <class P>
concept Projection = plays<P, Role::projection>;

/// One matrix (E, H·D) for all heads, and one product.
struct FusedProjection {
  static constexpr Role role = Role::projection;
  static constexpr const char* name = "FusedProjection";

  /// Where head weights of a layer lie in a flat array.
  template <class T> static TensorView<T, 3> layout(T* data, Index heads, Index model, Index head_dim) {
    return {data, {heads, model, head_dim}, {head_dim, std::ptrdiff_t{heads} * head_dim, 1}};
  }
};

/// A matrix (E, D) of its own for each head, as the formulas are written and as weights come that are stored head by
/// head. A backend that packs weights joins them, so that it runs one product as for FusedProjection; others run one
/// per head.
struct PerHeadProjection {
  static constexpr Role role = Role::projection;
  static constexpr const char* name = "PerHeadProjection";

  template <class T> static TensorView<T, 3> layout(T* data, Index heads, Index model, Index head_dim) {
    return {data, {heads, model, head_dim}, {std::ptrdiff_t{model} * head_dim, head_dim, 1}};
  }
};

}  // namespace mha::inline MHA_NAMESPACE
