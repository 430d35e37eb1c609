// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../policy/projection.hpp"
#include "config.hpp"

namespace mha::inline v0 {

/// A dense matrix (in, out) with a bias (out), null data for none.
template <class T> struct LinearWeights {
  TensorView<T, 2> weight;
  TensorView<T, 1> bias;

  TensorView<T, 2> matrix() const { return weight; }
};

/// Named views of a layer's parameters.
///
/// Shapes    query (Hq, E, D)  key (Hkv, E_kv, D)  value (Hkv, E_kv, Dv)  output (Hq·Dv, E), and their biases;
///           query_norm, key_norm (D) with QkNorm; gate (Hq) with GatedHeads; null data for what the layer has not
template <class T> struct ParameterViews {
  HeadWeights<T> query, key, value;
  LinearWeights<T> output;
  TensorView<T, 1> query_norm, key_norm, gate;
  std::span<T> all;

  /// Every number in one row, for an optimiser; empty when the weights are borrowed.
  std::span<T> flat() const { return all; }
};

/// Weights that stay where they are, as a checkpoint names them: matrices (in, out); pass mha::transposed(view) for one
/// that is stored (out, in).
///
/// Shapes    query (E, Hq·D)  key (E_kv, Hkv·D)  value (E_kv, Hkv·Dv)  output (Hq·Dv, E)  biases (columns of theirs)
///           query_norm, key_norm (D)  gate (Hq)
template <class T> struct BorrowedWeights {
  TensorView<const T, 2> query{}, key{}, value{}, output{};
  TensorView<const T, 1> query_bias{}, key_bias{}, value_bias{}, output_bias{};
  TensorView<const T, 1> query_norm{}, key_norm{}, gate{};
};

/// A layer's parameters: one flat allocation of its own, or views of somebody else's memory kept alive with it. There
/// are none until they are written or borrowed, so that a mapped checkpoint costs no second copy.
template <class T, class Projection, class N, class C, class O> class Parameters {
  struct NothingBefore {
    void operator()(const ParameterViews<const T>&) const {}
  };

 public:
  explicit Parameters(const Config& config) : config_(config) {}

  bool present() const { return borrowed_ || own_.size() > 0; }
  bool borrowed() const { return borrowed_; }
  /// What holds borrowed memory alive; null if nothing does.
  const std::shared_ptr<const void>& keep_alive() const { return keep_alive_; }

  /// How many numbers the parameters are.
  std::int64_t size() const {
    const Config& c = config_;
    const auto projection = [&](Index in, Index out) { return (std::int64_t{in} + (c.bias ? 1 : 0)) * out; };
    return projection(c.d_model, c.query_width()) + projection(c.kv_model, c.key_width()) +
           projection(c.kv_model, c.value_width()) + (O::has_weights ? projection(c.concat_width(), c.d_model) : 0) +
           (N::has_weights ? 2 * c.head_dim : 0) + (C::has_gates ? c.num_heads : 0);
  }

  ParameterViews<const T> views() const { return borrowed_ ? views_ : carve<const T>(own_.data(), own_.size()); }

  /// The parameters to write, zero at first.
  ///
  /// Errors    ShapeError if they are borrowed: they belong to somebody else
  ParameterViews<T> writable() {
    detail::require(!borrowed_, "update: the layer's ", size(),
                    " parameters are borrowed and read-only, 0 are its own");
    if (own_.size() == 0) {
      detail::require(size() <= std::numeric_limits<Index>::max(), "update: the layer has ", size(),
                      " parameters, the most in one allocation is ", std::numeric_limits<Index>::max(),
                      ": borrow them");
      own_ = Tensor<T, 1>(static_cast<Index>(size()));
    }
    return carve<T>(own_.data(), own_.size());
  }

  /// Uses weights where they are; before(views) comes last of what can throw.
  ///
  /// Errors    ShapeError if a matrix, bias or vector has not the configuration's shape; nothing changes then
  template <class F = NothingBefore>
  void borrow(const ParameterViews<const T>& w, std::shared_ptr<const void> keep_alive, const F& before = {}) {
    const Config& c = config_;
    detail::require(own_.size() == 0 || w.query.heads.data != own_.data(), "borrow: the weights are the layer's own ",
                    size(), " numbers, another layer's are wanted");
    check("query", w.query, c.d_model, c.num_heads, c.head_dim);
    check("key", w.key, c.kv_model, c.num_kv_heads, c.head_dim);
    check("value", w.value, c.kv_model, c.num_kv_heads, c.value_dim);
    check_matrix("output", w.output.weight, O::has_weights ? c.concat_width() : 0, O::has_weights ? c.d_model : 0);
    check_vector("output bias", w.output.bias, O::has_weights && c.bias ? c.d_model : 0);
    check_vector("query_norm", w.query_norm, N::has_weights ? c.head_dim : 0);
    check_vector("key_norm", w.key_norm, N::has_weights ? c.head_dim : 0);
    check_vector("gate", w.gate, C::has_gates ? c.num_heads : 0);
    before(w);
    views_ = w;
    views_.all = {};
    keep_alive_ = std::move(keep_alive);
    own_ = Tensor<T, 1>();
    borrowed_ = true;
  }

  template <class F = NothingBefore>
  void borrow(const BorrowedWeights<T>& w, std::shared_ptr<const void> keep_alive, const F& before = {}) {
    const Config& c = config_;
    // The matrices are checked while they are still as the caller wrote them.
    check_matrix("query", w.query, c.d_model, c.query_width());
    check_matrix("key", w.key, c.kv_model, c.key_width());
    check_matrix("value", w.value, c.kv_model, c.value_width());
    check_vector("query bias", w.query_bias, c.bias ? c.query_width() : 0);
    check_vector("key bias", w.key_bias, c.bias ? c.key_width() : 0);
    check_vector("value bias", w.value_bias, c.bias ? c.value_width() : 0);
    ParameterViews<const T> next;
    next.query = by_head(w.query, w.query_bias, c.num_heads, c.head_dim);
    next.key = by_head(w.key, w.key_bias, c.num_kv_heads, c.head_dim);
    next.value = by_head(w.value, w.value_bias, c.num_kv_heads, c.value_dim);
    next.output = {w.output, w.output_bias};
    next.query_norm = w.query_norm;
    next.key_norm = w.key_norm;
    next.gate = w.gate;
    borrow(next, std::move(keep_alive), before);
  }

 private:
  template <class U> ParameterViews<U> carve(U* data, std::size_t size) const {
    const Config& c = config_;
    ParameterViews<U> p;
    p.all = {data, size};
    U* at = data;
    const auto next = [&](std::ptrdiff_t n) { return at == nullptr ? at : std::exchange(at, at + n); };
    const auto head_weights = [&](Index heads, Index model, Index dim) {
      HeadWeights<U> w;
      const std::ptrdiff_t columns = std::ptrdiff_t{heads} * dim;
      w.heads = Projection::layout(next(model * columns), heads, model, dim);
      if (c.bias) w.bias = view(next(columns), heads, dim);
      return w;
    };
    p.query = head_weights(c.num_heads, c.d_model, c.head_dim);
    p.key = head_weights(c.num_kv_heads, c.kv_model, c.head_dim);
    p.value = head_weights(c.num_kv_heads, c.kv_model, c.value_dim);
    if constexpr (O::has_weights) {
      const Index in = c.concat_width();
      p.output.weight = view(next(std::ptrdiff_t{in} * c.d_model), in, c.d_model);
      if (c.bias) p.output.bias = view(next(c.d_model), c.d_model);
    }
    if constexpr (N::has_weights) {
      p.query_norm = view(next(c.head_dim), c.head_dim);
      p.key_norm = view(next(c.head_dim), c.head_dim);
    }
    if constexpr (C::has_gates) p.gate = view(next(c.num_heads), c.num_heads);
    return p;
  }

  static void check_matrix(const char* name, const TensorView<const T, 2>& w, Index in, Index out) {
    detail::require(w.extent[0] == in && w.extent[1] == out, "borrow: the ", name, " matrix is (", w.extent[0], ", ",
                    w.extent[1], "), the layer wants (", in, ", ", out, ")",
                    w.extent[0] == out && w.extent[1] == in ? ": pass mha::transposed(view)" : "");
    detail::require_data("borrow", name, w);
  }
  static void check_vector(const char* name, const TensorView<const T, 1>& w, Index wanted) {
    detail::require(w.extent[0] == wanted, "borrow: the ", name, " has ", w.extent[0], " elements, the layer wants ",
                    wanted);
    detail::require_data("borrow", name, w);
  }
  void check(const char* name, const HeadWeights<const T>& w, Index model, Index heads, Index dim) const {
    detail::require(w.head_count() == heads && w.model() == model && w.head_dim() == dim, "borrow: the ", name,
                    " weights are (", w.head_count(), ", ", w.model(), ", ", w.head_dim(), "), the layer wants (",
                    heads, ", ", model, ", ", dim, ")");
    detail::require_data("borrow", name, w.heads);
    detail::require(w.bias.extent[0] == (config_.bias ? heads : 0) && w.bias.extent[1] == (config_.bias ? dim : 0),
                    "borrow: the ", name, " bias is (", w.bias.extent[0], ", ", w.bias.extent[1],
                    "), the layer wants (", config_.bias ? heads : 0, ", ", config_.bias ? dim : 0, ")");
    detail::require_data("borrow", name, w.bias);
  }

  static HeadWeights<const T> by_head(const TensorView<const T, 2>& w, const TensorView<const T, 1>& bias, Index heads,
                                      Index dim) {
    HeadWeights<const T> r;
    r.heads = {w.data, {heads, w.extent[0], dim}, {dim * w.stride[1], w.stride[0], w.stride[1]}};
    if (bias.data != nullptr) r.bias = {bias.data, {heads, dim}, {dim * bias.stride[0], bias.stride[0]}};
    return r;
  }

  Config config_;
  bool borrowed_ = false;
  Tensor<T, 1> own_;
  ParameterViews<const T> views_;  // when borrowed
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace mha::inline v0
