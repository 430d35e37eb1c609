// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "linear_weights.hpp"
#include "norm_weights.hpp"
#include "parts.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T> struct FeedForwardViews;  // feed_forward_weights.hpp

namespace detail {

/// f(a span of all numbers) for each that the named views have.
template <class Views, class F> void for_each_span(Views& v, const F& f) {
  f(v.all);
  if constexpr (requires { v.up.all; }) f(v.up.all), f(v.down.all);
}

}  // namespace detail

/// The gradients of what a Linear, a FeedForward, a norm or a layer has learned, with the names of its parameters: what
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
/// Shapes    those of the parameters; flat() has the order of theirs, whether the owner owns them or not; memory() is
///           flat(), then a layer's sink
template <class A, class Views> class BlockGradients : public Views {
 public:
  using Named = Views;

  /// For so many numbers in a row, of which layout(pointer) names the views.
  template <class Layout> BlockGradients(std::int64_t size, const Layout& layout) {
    detail::require(size <= std::numeric_limits<Index>::max(), "gradients: there are ", size,
                    " numbers, the limit of one allocation is ", std::numeric_limits<Index>::max());
    memory_ = Tensor<A, 1>(static_cast<Index>(size));
    static_cast<Views&>(*this) = layout(memory_.data());
  }
  BlockGradients(const BlockGradients& other) : Views(other), memory_(other.memory_) {
    const Moved moved{other.memory_.data(), memory_.data()};
    detail::PartsOf<Views>::each(moved, views());
    detail::for_each_span(views(), moved);
  }
  BlockGradients(BlockGradients&& other) noexcept : Views(other), memory_(std::move(other.memory_)) {
    other.views() = {};
  }
  // Two, not one by value: that could not throw, and nor could the implicit copy assignment of what has gradients.
  BlockGradients& operator=(const BlockGradients& other) { return *this = BlockGradients(other); }
  BlockGradients& operator=(BlockGradients&& other) noexcept {
    BlockGradients taken(std::move(other));  // which may be these
    views() = taken;
    memory_ = std::move(taken.memory_);
    return *this;
  }
  ~BlockGradients() = default;

  using Views::for_each;
  /// f(numbers), a span of all that they are of: for their norm, or to scale them.
  template <class F> void for_each(F&& f) { f(this->flat()); }
  template <class F> void for_each(F&& f) const { f(std::span<const A>(this->flat())); }

  /// All ← 0, as a new step begins.
  void clear() { std::fill(memory_.begin(), memory_.end(), A(0)); }

  /// All numbers that they own.
  TensorView<const A, 1> memory() const { return memory_.view(); }

  // What gradients in another memory do with them.

  std::span<A> writable() { return {memory_.data(), memory_.size()}; }
  /// The same views of numbers that lie elsewhere, in this order.
  Views elsewhere(A* data) const {
    Views there = *this;
    const Moved moved{memory_.data(), data};
    detail::PartsOf<Views>::each(moved, there);
    detail::for_each_span(there, moved);
    return there;
  }

 private:
  /// What points into one row points into another.
  struct Moved {
    const A* from;
    A* to;
    template <int Rank> void operator()(const char*, TensorView<A, Rank>& v) const {
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

}  // namespace mha::inline MHA_NAMESPACE
