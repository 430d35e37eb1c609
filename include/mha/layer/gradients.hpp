// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "parameters.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The gradients of a layer's parameters, with the names that they have there: what layer.backward() adds to.
///
///   auto gradients = layer.gradients();  // all 0
///   layer.backward(dy, tape, gradients);
///   layer.update([&](auto& p) {
///     for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] -= rate * gradients.flat()[i];
///   });
///   gradients.clear();
///
/// Scalars   A is the accumulator of the layer's scalar
/// Shapes    those of ParameterViews; flat() has the order of the layer's own, whether it owns its weights or not.
///           sink (Hq), apart from flat(), null data without a Sink
template <class A> class LayerGradients : public ParameterViews<A> {
  using Views = ParameterViews<A>;

 public:
  TensorView<A, 1> sink;

  /// For parameters as a layer lays them out: layout(pointer) names the views of so many numbers in a row.
  template <class Layout> LayerGradients(std::int64_t size, Index sinks, const Layout& layout) {
    const std::int64_t total = size + sinks;
    detail::require(total <= std::numeric_limits<Index>::max(), "gradients: the layer has ", total,
                    " parameters, the limit of one allocation is ", std::numeric_limits<Index>::max());
    memory_ = Tensor<A, 1>(static_cast<Index>(total));
    static_cast<Views&>(*this) = layout(memory_.data());
    if (sinks > 0) sink = view(memory_.data() + size, sinks);
  }
  LayerGradients(const LayerGradients& other) : Views(other), sink(other.sink), memory_(other.memory_) {
    for_each_view([&](auto& v) {
      if (v.data != nullptr) v.data = memory_.data() + (v.data - other.memory_.data());
    });
    Views::all = {memory_.data(), other.all.size()};
  }
  LayerGradients(LayerGradients&& other) noexcept : Views(other), sink(other.sink), memory_(std::move(other.memory_)) {
    other.release();
  }
  LayerGradients& operator=(LayerGradients other) noexcept {
    static_cast<Views&>(*this) = other;
    sink = other.sink;
    memory_ = std::move(other.memory_);
    other.release();
    return *this;
  }
  ~LayerGradients() = default;

  /// All ← 0, as a new step begins.
  void clear() { std::fill(memory_.begin(), memory_.end(), A(0)); }

  /// All numbers that they own, the sinks' too.
  TensorView<const A, 1> memory() const { return memory_.view(); }

 private:
  template <class F> void for_each_view(const F& f) {
    const auto each = [&](auto&... views) { (f(views), ...); };
    each(this->query.heads, this->query.bias, this->key.heads, this->key.bias, this->value.heads, this->value.bias,
         this->output.weight, this->output.bias, this->query_norm, this->key_norm, this->gate, sink);
  }
  void release() {
    for_each_view([](auto& v) { v = {}; });
    Views::all = {};
  }

  Tensor<A, 1> memory_;
};

namespace detail {

/// The gradients have the shapes of the layer's parameters, laid out as its own are.
template <class A>
void require_gradients(const char* call, const ParameterViews<A>& given, const ParameterViews<A>& own) {
  const auto same = [&](const char* name, const auto& is, const auto& expected) {
    for (int a = 0; a < expected.rank; ++a)
      require(is.extent[a] == expected.extent[a], call, ": the gradients are of another layer: on axis ", a, " their ",
              name, " has extent ", is.extent[a], ", expected ", expected.extent[a]);
    for (int a = 0; a < expected.rank; ++a)
      require(is.stride[a] == expected.stride[a], call, ": the gradients are of another layer: on axis ", a, " their ",
              name, " has stride ", is.stride[a], ", expected ", expected.stride[a]);
  };
  same("query", given.query.heads, own.query.heads);
  same("query bias", given.query.bias, own.query.bias);
  same("key", given.key.heads, own.key.heads);
  same("key bias", given.key.bias, own.key.bias);
  same("value", given.value.heads, own.value.heads);
  same("value bias", given.value.bias, own.value.bias);
  same("output", given.output.weight, own.output.weight);
  same("output bias", given.output.bias, own.output.bias);
  same("query_norm", given.query_norm, own.query_norm);
  same("key_norm", given.key_norm, own.key_norm);
  same("gate", given.gate, own.gate);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
