// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/backward.hpp"
#include "../block/kept_arrays.hpp"
#include "../call.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "../launch.hpp"
#include "../score_gradients.hpp"
#include "../tape.hpp"
#include "recorded.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class TrainableLayer;

namespace detail {

/// A value of some type derived from Base, in memory that is kept from value to value.
template <class Base> class InPlace {
 public:
  InPlace() = default;
  InPlace(InPlace&& other) noexcept
      : memory_(std::move(other.memory_)),
        size_(std::exchange(other.size_, 0)),
        held_(std::exchange(other.held_, nullptr)) {}
  InPlace& operator=(InPlace&& other) noexcept {
    if (this == &other) return *this;
    reset();
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    held_ = std::exchange(other.held_, nullptr);
    return *this;
  }
  ~InPlace() { reset(); }

  const Base* get() const { return held_; }

  template <class D> void emplace(D&& value) {
    using Value = std::remove_cvref_t<D>;
    static_assert(alignof(Value) <= alignment,
                  "mha: a policy is aligned to more than mha::alignment (see "
                  "mha/config.hpp)");
    reset();
    if (sizeof(Value) > size_) {
      memory_ = aligned_array<std::byte>(sizeof(Value));
      size_ = sizeof(Value);
    }
    held_ = new (memory_.get()) Value(std::forward<D>(value));
  }

 private:
  void reset() {
    if (held_ != nullptr) std::exchange(held_, nullptr)->~Base();
  }

  std::unique_ptr<std::byte[], AlignedDelete> memory_;
  std::size_t size_ = 0;
  Base* held_ = nullptr;
};

/// The tensors of a layer's attention in the backward pass.
template <class T> struct HeadGradients {
  TensorView<const T, 4> q, key, value, out, d_out;
  GradientTo<T> d_q, d_key, d_value;
  LongSum<Accumulator<T>>* sink = nullptr;
  BiasTo<T> bias{};
};

/// The policies of a recorded call, whatever their types.
template <class T, class B> class RecordedPolicies {
 public:
  virtual ~RecordedPolicies() = default;
  /// Checks the policies' data again, then steps.before(), the backward pass of attention, steps.score() if the layer's
  /// has trained numbers, steps.after().
  virtual void backward(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads,
                        BackwardSteps<Accumulator<T>>& steps, typename B::Workspace& workspace) const = 0;
};

/// The policies of a call of a layer that has the score S, and was given the score C.
template <class T, class B, class M, class S, class C, class Sink>
class PoliciesOf final : public RecordedPolicies<T, B> {
  using A = Accumulator<T>;
  using Steps = BackwardSteps<A>;
  using Workspace = typename B::Workspace;
  using Both = decltype(chain(std::declval<const S&>(), std::declval<const C&>()));
  static constexpr bool trains = trains_score<T, S>, has_bias = count_biases<Both> == 1 && Arithmetic<A>;
  static constexpr bool has_derivative = check_differentiated_score<A, Both, trains>();

 public:
  PoliciesOf(const M& mask, const S& score, const C& of_call, const Sink& sink, const CallOptions<A>& options)
      : mask_(mask), score_(chain(score, of_call)), sink_(sink), options_(options) {
    options_.log_sum_exp.reset();
  }

  void backward(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads, Steps& steps,
                Workspace& workspace) const override {
    require(has_bias || !heads.bias.wanted(), "backward: BiasGradient is given, but the call on the tape has ",
            count_biases<Both>, " AdditiveBiases, expected 1");
    if constexpr (has_derivative) {
      if constexpr (has_bias) {
        using Wanted = WantedScoreGradients<true, trains>;
        if (heads.bias.wide.data != nullptr)
          return run<Wanted>(backend, tape, heads, steps, workspace, heads.bias.wide);
        if constexpr (!std::is_same_v<T, A>)
          if (heads.bias.own.data != nullptr)
            return run<Wanted>(backend, tape, heads, steps, workspace, heads.bias.own);
      }
      using Wanted = std::conditional_t<trains, WantedScoreGradients<false, true>, NoScoreGradients>;
      run<Wanted>(backend, tape, heads, steps, workspace, NoType{});
    }
  }

 private:
  template <class Wanted, class Bias>
  void run(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads, Steps& steps,
           Workspace& workspace, const Bias& bias) const {
    constexpr const char* name = "backward";
    auto frame = workspace.frame();
    auto forward =
        checked_call<T, memory_of<B>>(name, heads.q, kv_of(name, heads.q, heads.key, heads.value, options_.ragged),
                                      mask_, score_, sink_, options_, frame);
    using F = decltype(forward);
    AttendBackwardCall<T, decltype(F::kv), decltype(F::mask), decltype(F::score), Wanted> call{
        forward,   heads.out,   heads.d_out,   {},        tape.level(), tape.sum(),
        heads.d_q, heads.d_key, heads.d_value, heads.sink};
    call.key_offsets = forward.kv.offsets.data;
    tape.require_of(name, forward);
    const CallShape& shape = forward.shape;
    const auto bias_to = [&] {
      if constexpr (Wanted::bias)
        return bias_sums<A>(name, score_, bias, shape, frame);
      else
        return bias;
    }();
    if constexpr (Wanted::bias || Wanted::parameters) {
      using Head = decltype(at_head(forward.score, Index{}, Index{}));
      const auto sums = score_gradient_sums<A, Wanted, Head>(score_, bias_to, shape, frame);
      call.score = sums.to;
      steps.before();
      run_backward(backend, call, workspace);
      sums.store();
      if constexpr (Wanted::parameters) steps.score(sums.sums());
    } else {
      steps.before();
      run_backward(backend, call, workspace);
    }
    steps.after({shape.origin, forward.q_offsets, shape.batch, shape.queries},
                {Origins(Index{0}), forward.kv.offsets.data, shape.batch, shape.keys});
  }

  [[no_unique_address]] M mask_;
  [[no_unique_address]] Both score_;
  [[no_unique_address]] Sink sink_;
  CallOptions<A> options_;
};

}  // namespace detail

/// What a call of a layer leaves for its backward pass. Calls reuse its memory; one tape serves any layers of this
/// scalar and backend, the last call counts.
///
///   auto tape = layer.tape();
///   const auto y = layer(x, tape, mha::Padding{lengths});
///   const auto dx = layer.backward(dy, tape, gradients);
///
/// Keeps     q, k, v and the heads of every row, two numbers of each softmax row, the call's policies; with QkNorm
///           q and k before it too
/// Borrows   x, the memory, and what the call's policies, Ragged and Origin point at: all must stay as they were until
///           backward() has run
template <class T, class B> class LayerTape {
 public:
  static constexpr bool is_call_tape = true;
  using Scalar = T;
  using OnBackend = B;

  LayerTape() = default;
  LayerTape(const LayerTape&) = delete;
  LayerTape(LayerTape&&) = default;
  LayerTape& operator=(const LayerTape&) = delete;
  LayerTape& operator=(LayerTape&&) = default;
  ~LayerTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return attention_.recorded() && policies_.get() != nullptr; }

 private:
  template <class, Backend, class> friend class TrainableLayer;

  std::uint64_t version_ = 0;  // of the weights
  detail::RecordedTensors<T> recorded_;
  AttentionTape<T, B> attention_;
  detail::KeptArrays<T> arrays_;
  detail::InPlace<detail::RecordedPolicies<T, B>> policies_;
};

}  // namespace mha::inline MHA_NAMESPACE
