// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <span>

#include "../block/parts.hpp"
#include "../block/weight_view.hpp"
#include "../core/view.hpp"
#include "../policy/projection.hpp"

/// The names of a layer's parameters, whoever owns them.
namespace mha::inline MHA_NAMESPACE {

/// A dense matrix (in, out) with a bias (out), null data for none.
template <class T> struct LinearWeights {
  TensorView<T, 2> weight;
  TensorView<T, 1> bias;

  TensorView<T, 2> matrix() const { return weight; }

  /// Writes the matrix (in, out) from one of any scalar: p.output = m.
  ///
  /// Errors    ShapeError if it has another shape or lies in these weights; nothing is written then
  template <class Matrix>
  requires(!std::convertible_to<const Matrix&, LinearWeights> ||
           std::same_as<Matrix, LinearWeights>) const LinearWeights&
  operator=(const Matrix& from) const {
    detail::write_weights<T>(from, weight.extent[0], weight.extent[1], weight, weight);
    return *this;
  }
};

/// Named views of a layer's parameters.
///
/// Shapes    query (Hq, E, D)  key (Hkv, E_kv, D)  value (Hkv, E_kv, Dv)  output (Hq·Dv, E), and their biases;
///           query_norm, key_norm (D) with QkNorm; gate (Hq) with GatedHeads; null data for what the layer does not
///           have, and for matrices and biases of which only packed ones are left
template <class T> struct ParameterViews {
  HeadWeights<T> query, key, value;
  LinearWeights<T> output;
  TensorView<T, 1> query_norm, key_norm, gate;
  std::span<T> all;

  /// Every number in one row, for an optimiser: query, key, value and output, each a matrix (in, out) row by row, or of
  /// a PerHeadProjection head by head, and then its bias; query_norm, key_norm, gate.
  ///
  /// Errors    ShapeError if there are no weights yet, or only packed ones, or they are borrowed: those have names only
  std::span<T> flat() const { return detail::flat_of(query.heads.data != nullptr, all); }

  /// step(numbers, their gradients), spans of one length, for all that the layer trains: flat(), then the numbers of
  /// its score, as far as they are trained, then those of its Sink. Their scalars may differ.
  ///
  /// Errors    as flat(); ShapeError for gradients of other sizes, before the first step
  template <class Gradients, class Step> void for_each(const Gradients& gradients, Step&& step) const {
    const auto d = detail::checked_gradients("for_each", *this, gradients);
    detail::run_step(step, flat(), d);
  }
};

/// Weights that stay where they are, as a checkpoint names them: matrices (in, out); pass mha::transposed(view) for one
/// that is stored (out, in).
///
/// Shapes    query (E, Hq·D)  key (E_kv, Hkv·D)  value (E_kv, Hkv·Dv)  output (Hq·Dv, E)  biases (columns of theirs)
///           query_norm, key_norm (D)  gate (Hq)
/// Scalars   the layer's own; or half or bfloat16 under float or double
template <class T> struct BorrowedWeights {
  WeightView<T, 2> query{}, key{}, value{}, output{};
  WeightView<T, 1> query_bias{}, key_bias{}, value_bias{}, output_bias{};
  WeightView<T, 1> query_norm{}, key_norm{}, gate{};
};

namespace detail {

template <class T> struct PartsOf<ParameterViews<T>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    f("query", v.query.heads...), f("query bias", v.query.bias...), f("key", v.key.heads...);
    f("key bias", v.key.bias...), f("value", v.value.heads...), f("value bias", v.value.bias...);
    f("output", v.output.weight...), f("output bias", v.output.bias...);
    f("query_norm", v.query_norm...), f("key_norm", v.key_norm...), f("gate", v.gate...);
  }
};

template <class Weights> struct WeightScalarOf {};
template <class W> struct WeightScalarOf<BorrowedWeights<W>> { using type = W; };
template <class W> struct WeightScalarOf<ParameterViews<const W>> { using type = W; };
/// The scalar of what borrow() takes.
template <class Weights> using WeightScalar = typename WeightScalarOf<Weights>::type;
template <class Weights, class T>
concept WeightsOfAnother = !std::same_as<WeightScalar<Weights>, T>;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
