// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "linear_weights.hpp"
#include "norm_weights.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Named views of a FeedForward's parameters, or of their gradients.
template <class T> struct FeedForwardViews {
  LinearViews<T> up, down;
  std::span<T> all;

  /// Every number in one row, that of up first.
  std::span<T> flat() const { return detail::flat_of(up.weight.data != nullptr, all); }
};

namespace detail {

// f of every view and span of named views.
template <class T, class F> void for_each_part(LinearViews<T>& v, const F& f) {
  f(v.weight), f(v.bias), f(v.gate), f(v.gate_bias), f(v.all);
}
template <class T, class F> void for_each_part(NormViews<T>& v, const F& f) { f(v.weight), f(v.bias), f(v.all); }
template <class T, class F> void for_each_part(FeedForwardViews<T>& v, const F& f) {
  for_each_part(v.up, f);
  for_each_part(v.down, f);
  f(v.all);
}

}  // namespace detail

/// The gradients of what a Linear, a FeedForward or a norm has learned, with the names of its parameters: what
/// backward() adds to.
///
///   auto gradients = linear.gradients();  // all 0
///   dx = linear.backward(dy, tape, gradients);
///   linear.update([&](auto& p) {
///     for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] -= rate * gradients.flat()[i];
///   });
///   gradients.clear();
///
/// Scalars   A is the accumulator of the parameters' scalar
/// Shapes    those of the parameters; flat() has the order of the owner's own, whether it owns them or not
template <class A, class Views> class BlockGradients : public Views {
 public:
  /// For so many numbers in a row, of which layout(pointer) names the views.
  template <class Layout> BlockGradients(std::int64_t size, const Layout& layout) {
    detail::require(size <= std::numeric_limits<Index>::max(), "gradients: there are ", size,
                    " parameters, the limit of one allocation is ", std::numeric_limits<Index>::max());
    memory_ = Tensor<A, 1>(static_cast<Index>(size));
    static_cast<Views&>(*this) = layout(memory_.data());
  }
  BlockGradients(const BlockGradients& other) : Views(other), memory_(other.memory_) {
    detail::for_each_part(views(), Moved{other.memory_.data(), memory_.data()});
  }
  BlockGradients(BlockGradients&& other) noexcept : Views(other), memory_(std::move(other.memory_)) {
    other.views() = {};
  }
  BlockGradients& operator=(BlockGradients other) noexcept {
    views() = other;
    memory_ = std::move(other.memory_);
    other.views() = {};
    return *this;
  }
  ~BlockGradients() = default;

  /// All ← 0, as a new step begins.
  void clear() { std::fill(memory_.begin(), memory_.end(), A(0)); }

  /// All numbers that they own.
  TensorView<const A, 1> memory() const { return memory_.view(); }

 private:
  /// What points into one row points into another.
  struct Moved {
    const A* from;
    A* to;
    template <int Rank> void operator()(TensorView<A, Rank>& v) const {
      if (v.data != nullptr) v.data = to + (v.data - from);
    }
    void operator()(std::span<A>& all) const {
      if (!all.empty()) all = {to + (all.data() - from), all.size()};
    }
  };
  Views& views() { return *this; }

  Tensor<A, 1> memory_;
};

template <class A> using LinearGradients = BlockGradients<A, LinearViews<A>>;
template <class A> using FeedForwardGradients = BlockGradients<A, FeedForwardViews<A>>;
template <class A> using NormGradients = BlockGradients<A, NormViews<A>>;

namespace detail {

/// Gradients have the extents of the parameters that they are the gradients of.
template <class A, int Rank>
void require_gradient(const char* name, const TensorView<A, Rank>& given, const Index (&expected)[std::size_t{Rank}]) {
  for (int axis = 0; axis < Rank; ++axis)
    require(given.extent[axis] == expected[axis], "backward: the gradients are of other sizes: on axis ", axis,
            " their ", name, " has extent ", given.extent[axis], ", expected ", expected[axis]);
}
template <class A> void require_gradients(const LinearViews<A>& given, const LinearConfig& c, bool gated) {
  const Index bias = c.bias ? c.outputs : 0;
  require_gradient("weight", given.weight, {c.inputs, c.outputs});
  require_gradient("bias", given.bias, {bias});
  require_gradient("gate", given.gate, {gated ? c.inputs : 0, gated ? c.outputs : 0});
  require_gradient("gate_bias", given.gate_bias, {gated ? bias : 0});
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
