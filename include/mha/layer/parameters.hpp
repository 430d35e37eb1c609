// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
/// Shapes    query (Hq, E, D)  key (Hkv, E_kv, D)  value (Hkv, E_kv, Dv)  output (Hq·Dv, E), and their biases
template <class T> struct ParameterViews {
  HeadWeights<T> query, key, value;
  LinearWeights<T> output;
  std::span<T> all;

  /// Every number in one row, for an optimiser; empty when the weights are borrowed.
  std::span<T> flat() const { return all; }
};

/// Weights that stay where they are, as a checkpoint names them: matrices (in, out); pass mha::transposed(view) for one
/// that is stored (out, in).
///
/// Shapes    query (E, Hq·D)  key (E_kv, Hkv·D)  value (E_kv, Hkv·Dv)  output (Hq·Dv, E)  biases (columns of theirs)
template <class T> struct BorrowedWeights {
  TensorView<const T, 2> query, key, value, output;
  TensorView<const T, 1> query_bias, key_bias, value_bias, output_bias;
};

/// A layer's parameters: one flat allocation of its own, or views of somebody else's memory kept alive with it.
template <class T, class Projection, bool HasOutput> class Parameters {
 public:
  explicit Parameters(const Config& config) : config_(config), own_(static_cast<Index>(count(config))) {}

  bool owned() const { return owned_; }

  /// How many numbers the parameters are.
  std::ptrdiff_t size() const { return count(config_); }

  ParameterViews<const T> views() const { return owned_ ? carve<const T>(own_.data(), own_.size()) : borrowed_; }

  /// Errors    ShapeError if the weights are borrowed: they belong to somebody else
  ParameterViews<T> writable() {
    detail::require(owned_, "update: the layer's ", size(), " parameters are borrowed and read-only, 0 are its own");
    return carve<T>(own_.data(), own_.size());
  }

  /// Errors    ShapeError if a matrix or bias has not the configuration's shape; the parameters stay as they were
  void borrow(const BorrowedWeights<T>& w, std::shared_ptr<const void> keep_alive) {
    const Config& c = config_;
    ParameterViews<const T> next;
    next.query = heads("query", w.query, w.query_bias, c.d_model, c.num_heads, c.head_dim);
    next.key = heads("key", w.key, w.key_bias, c.kv_model, c.num_kv_heads, c.head_dim);
    next.value = heads("value", w.value, w.value_bias, c.kv_model, c.num_kv_heads, c.value_dim);
    if constexpr (HasOutput) {
      check("output", w.output, w.output_bias, c.num_heads * c.value_dim, c.d_model);
      next.output = {w.output, w.output_bias};
    } else {
      detail::require(w.output.data == nullptr, "borrow: an output matrix with ", w.output.size(),
                      " elements, but the layer has NoOutput, so 0 are wanted");
    }
    borrowed_ = next;
    keep_alive_ = std::move(keep_alive);
    own_ = Tensor<T, 1>();
    owned_ = false;
  }

 private:
  static std::ptrdiff_t count(const Config& c) {
    const auto projection = [&](Index in, std::ptrdiff_t out) { return (std::ptrdiff_t{in} + (c.bias ? 1 : 0)) * out; };
    const std::ptrdiff_t n = projection(c.d_model, c.query_width()) + projection(c.kv_model, c.key_width()) +
                             projection(c.kv_model, c.value_width()) +
                             (HasOutput ? projection(c.num_heads * c.value_dim, c.d_model) : 0);
    detail::require(n <= std::numeric_limits<Index>::max(), "Config: the layer has ", n, " parameters, the most is ",
                    std::numeric_limits<Index>::max(), ": borrow them from several arrays instead");
    return n;
  }

  template <class U> ParameterViews<U> carve(U* data, std::size_t size) const {
    const Config& c = config_;
    ParameterViews<U> p;
    p.all = {data, size};
    U* at = data;
    const auto next = [&](std::ptrdiff_t n) { return std::exchange(at, at + n); };
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
    if constexpr (HasOutput) {
      const Index in = c.num_heads * c.value_dim;
      p.output.weight = view(next(std::ptrdiff_t{in} * c.d_model), in, c.d_model);
      if (c.bias) p.output.bias = view(next(c.d_model), c.d_model);
    }
    return p;
  }

  void check(const char* name, const TensorView<const T, 2>& w, const TensorView<const T, 1>& bias, Index in,
             Index out) const {
    detail::require(w.data != nullptr, "borrow: the ", name, " matrix is null, the layer wants (", in, ", ", out, ")");
    detail::require(w.extent[0] == in && w.extent[1] == out, "borrow: the ", name, " matrix is (", w.extent[0], ", ",
                    w.extent[1], "), the layer wants (", in, ", ", out, ")",
                    w.extent[0] == out && w.extent[1] == in ? ": pass mha::transposed(view)" : "");
    detail::require((bias.data != nullptr) == config_.bias, "borrow: the ", name, " bias has ", bias.extent[0],
                    " elements, the layer wants ", config_.bias ? out : 0);
    detail::require(!config_.bias || bias.extent[0] == out, "borrow: the ", name, " bias has ", bias.extent[0],
                    " elements, the layer wants ", out);
  }

  HeadWeights<const T> heads(const char* name, const TensorView<const T, 2>& w, const TensorView<const T, 1>& bias,
                             Index model, Index count, Index dim) const {
    check(name, w, bias, model, count * dim);
    HeadWeights<const T> r;
    r.heads = {w.data, {count, model, dim}, {dim * w.stride[1], w.stride[0], w.stride[1]}};
    if (bias.data != nullptr) r.bias = {bias.data, {count, dim}, {dim * bias.stride[0], bias.stride[0]}};
    return r;
  }

  Config config_;
  bool owned_ = true;
  Tensor<T, 1> own_;
  ParameterViews<const T> borrowed_;
  std::shared_ptr<const void> keep_alive_;
};

}  // namespace mha::inline v0
