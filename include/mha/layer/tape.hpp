// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/backward.hpp"
#include "../block/kept_arrays.hpp"
#include "../call.hpp"
#include "../checked_call.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/math.hpp"
#include "../core/overlap.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "../score_gradients.hpp"
#include "../staged.hpp"
#include "../tape.hpp"
#include "backward_interface.hpp"
#include "gradients.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class RecordingLayer;
template <class T, Backend B, class Policies> class TrainableLayer;

namespace detail {

template <class A, class Wanted, class Head, class B, class S, class Frame, class... Extra>
auto call_score_gradients(const char* call, const ItemsOn<B>& on, const S& score, const CallShape& shape, Frame& frame,
                          const Extra&... extra);  // in device_score_gradients.hpp

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
                  "mha: a policy is aligned to more than mha::alignment (see mha/config.hpp)");
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
  Borrowed<Index> key_offsets;                        ///< of keys that do not lie as the queries do
  TensorView<const Accumulator<T>, 3> d_log_sum_exp;  ///< null data for 0
  GradientTo<T> d_q, d_key, d_value;
  LongSum<Accumulator<T>>* sink = nullptr;
  BiasTo<T> bias{};
  ScoreTo score{};
  NamedArray results[3] = {
      {"dx", {}}, {"d_memory", {}}, {"d_values", {}}};  ///< which overlap no AdditiveBias of the call
};

/// The keys and values of a recorded call in its backward pass.
template <class T>
ContiguousKv<T> kv_of_recorded(const CallNames& names, const TensorView<const T, 4>& q,
                               const TensorView<const T, 4>& key, const TensorView<const T, 4>& value,
                               const Borrowed<Index>& offsets, const std::optional<Ragged>& ragged) {
  return offsets.data != nullptr ? ContiguousKv<T>{key, value, offsets} : kv_of(names, q, key, value, ragged);
}

/// What a layer's backward pass computes of its own score S and the call's score C, one after the other.
template <class S, class C, bool Bias, bool OfLayer, bool OfCall> struct WantedOfCall {
  using type =
      std::conditional_t<OfLayer == OfCall, WantedScoreGradients<Bias, OfLayer>, WantedOfChain<Bias, OfLayer, OfCall>>;
};
template <class S, bool Bias, bool OfLayer, bool OfCall> struct WantedOfCall<S, NoScore, Bias, OfLayer, OfCall> {
  using type = WantedScoreGradients<Bias, OfLayer>;
};
template <class C, bool Bias, bool OfLayer, bool OfCall> struct WantedOfCall<NoScore, C, Bias, OfLayer, OfCall> {
  using type = WantedScoreGradients<Bias, OfCall>;
};
template <bool Bias, bool OfLayer, bool OfCall> struct WantedOfCall<NoScore, NoScore, Bias, OfLayer, OfCall> {
  using type = NoScoreGradients;
};

/// Whether the numbers of a call's score have gradients in a layer's backward pass.
template <class A, class B, class C> constexpr bool gives_gradients() {
  using Own = ScoreOnHost<C>;
  if constexpr (Arithmetic<A> && has_score_gradients<B> && !std::is_same_v<Trained<Own>, NoScore>) {
    using Head = decltype(at_head(prepared(std::declval<const C&>(), CallShape{}), Index{}, Index{}));
    return has_derivative<A, C, true>() && std::is_move_assignable_v<Trained<Own>> && !sums_no_score<B, Own>() &&
           is_trained_as_given<WantedScoreGradients<false, true>, Own, Head>();
  }
  return false;
}

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
  // Where a layer has none of these, its backward() refuses to be given where to.
  static constexpr bool trains = trains_on<B, T, ScoreOnHost<S>>,
                        has_bias = has_score_gradients<B> && count_biases<Both> == 1 && Arithmetic<A>;
  static constexpr bool has_derivative =
      check_differentiated_score<A, S, trains>() && check_differentiated_score<A, C, false>();
  static constexpr bool gives = gives_gradients<A, B, C>();
  using OfCallScore = Trained<ScoreOnHost<C>>;
  template <bool Bias, bool OfCall>
  using WantedFor = std::conditional_t<Bias || trains || OfCall,
                                       typename WantedOfCall<S, C, Bias, trains, OfCall>::type, NoScoreGradients>;

 public:
  PoliciesOf(const M& mask, const S& score, const C& of_call, const Sink& sink, const CallOptions<A>& options)
      : mask_(mask), score_(chain(score, of_call)), sink_(sink), options_(options) {
    options_.log_sum_exp.reset();
  }

  void backward(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads, Steps& steps,
                Workspace& workspace) const override {
    require(has_bias || !heads.bias.wanted(), "backward: BiasGradient is given, but the call on the tape has ",
            count_biases<Both>, " AdditiveBiases, expected 1");
    for (const NamedArray& result :
         {heads.results[0], heads.results[1], heads.results[2], NamedArray{"the ScoreGradient", heads.score.at}})
      require(!has_bias_in(score_, result.at), "backward: ", result.name,
              " overlaps the AdditiveBias of the call on the tape");
    if (heads.score.to != nullptr) {
      require(gives, "backward: ScoreGradient is given, but the call on the tape has no score that can be trained");
      if constexpr (gives)
        require(heads.score.type == &TypeKey<OfCallScore>::at,
                "backward: the ScoreGradient has another type than the trained score of the call on the tape");
    }
    if constexpr (has_derivative) {
      if constexpr (gives)
        if (heads.score.to != nullptr) return run_any<true>(backend, tape, heads, steps, workspace);
      run_any<false>(backend, tape, heads, steps, workspace);
    }
  }

 private:
  template <bool OfCall>
  void run_any(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads, Steps& steps,
               Workspace& workspace) const {
    if constexpr (has_bias) {
      const auto run_to = [&](auto to) {
        to.adds = heads.bias.adds;
        run<OfCall>(backend, tape, heads, steps, workspace, to);
      };
      if (heads.bias.to_wide) return run_to(BiasGradient(heads.bias.wide));
      if constexpr (!std::is_same_v<T, A>)
        if (heads.bias.to_own) return run_to(BiasGradient(heads.bias.own));
    }
    run<OfCall>(backend, tape, heads, steps, workspace);
  }

  template <bool OfCall, class... OfBias>
  void run(const B& backend, const AttentionTape<T, B>& tape, const HeadGradients<T>& heads, Steps& steps,
           Workspace& workspace, const OfBias&... of_bias) const {
    using Wanted = WantedFor<(sizeof...(OfBias) > 0), OfCall>;
    constexpr const char* name = "backward";
    auto frame = workspace.frame();
    const auto forward = checked_call<T, memory_of<B>>(
        name, heads.q, kv_of_recorded(name, heads.q, heads.key, heads.value, heads.key_offsets, options_.ragged), mask_,
        score_, sink_, options_, frame);
    tape.require_of(backend, name, forward);
    require_backward_fits(backend, name, forward.shape);
    using F = std::remove_const_t<decltype(forward)>;
    AttendBackwardCall<T, decltype(F::kv), decltype(F::mask), decltype(F::score), Wanted> call{
        staged(backend, forward, frame, workspace),
        heads.out,
        heads.d_out,
        heads.d_log_sum_exp,
        tape.level(),
        tape.sum(),
        heads.d_q,
        heads.d_key,
        heads.d_value,
        heads.sink};
    call.key_offsets = call.forward.kv.offsets.data;
    const CallShape& shape = call.forward.shape;
    if constexpr (Wanted::bias || Wanted::parameters) {
      using Head = decltype(at_head(forward.score, Index{}, Index{}));
      const auto& score = on_host(score_);
      const ItemsOn<B> items{backend, workspace};
      if constexpr (OfCall) require_sendable(backend, workspace);
      const auto sums = call_score_gradients<A, Wanted, Head>(name, items, score, forward.shape, frame, of_bias...);
      steps.before();
      call.score = sums.cleared();
      run_backward(backend, call, workspace);
      if constexpr (sums_scores<B>)
        sums.store_bias(backend, workspace, of_bias...);
      else
        sums.store();
      if constexpr (trains) steps.score(sums.sums());
      if constexpr (OfCall) {
        auto& to = *static_cast<OfCallScore*>(heads.score.to);
        if constexpr (sums_scores<B>)
          sums.with_sums_on_host(backend, workspace, [&](const ScoreSums<A>& here) {
            write_call_score<OnlyParameters<Wanted>, Head>(score, here, to);
          });
        else
          write_call_score<Wanted, Head>(score, sums.sums(), to);
      }
    } else {
      steps.before();
      run_backward(backend, call, workspace);
    }
    steps.after({shape.origin, call.forward.q_offsets, shape.batch, shape.queries},
                {Origins(Index{0}), call.key_offsets, shape.batch, shape.keys});
  }

  /// The sums of the call's score, which follow those of the layer's own; both are of the score as the host has it.
  template <class Wanted, class Head, class Score>
  static void write_call_score(const Score& score, const ScoreSums<A>& sums, OfCallScore& to) {
    using Own = ScoreOnHost<C>;
    int slot = 0, table = 0, own = sums.own;
    if constexpr (std::is_same_v<S, NoScore>) {
      to = without_numbers(trained(score));
      add_gradients<Wanted, Own>(to, sums, slot, table, own);
    } else {
      using OfLayer = typename Wanted::First;
      slot = Slots<OfLayer, decltype(Head::first)>::count();
      table = Tables<OfLayer, decltype(Head::first)>::count();
      own += accumulated_numbers<OfLayer>(score.first);
      to = without_numbers(trained(score.second));
      add_gradients<typename Wanted::Second, Own>(to, sums, slot, table, own);
    }
  }

  [[no_unique_address]] M mask_;
  [[no_unique_address]] Both score_;
  [[no_unique_address]] Sink sink_;
  CallOptions<A> options_;
};

}  // namespace detail

/// What a call of a layer leaves for its backward pass. Calls reuse its memory; one tape serves any layers of this
/// scalar and backend on one device, the last call counts.
///
///   auto tape = layer.tape();
///   const auto y = layer(x, tape, mha::Padding{lengths});
///   const auto dx = layer.backward(dy, tape, gradients);
///
/// Keeps     q, k, v and the heads of every row, two numbers of each softmax row, the call's policies; with QkNorm
///           q and k before it too; of a step of a cache k and v of all positions
/// Borrows   x, the memory, of rows or of project_memory(), and what the call's policies, Ragged, Origin and Positions
///           point at: all must stay as they were until backward() has run
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
  template <class, Backend, class> friend class RecordingLayer;
  template <class, Backend, class> friend class TrainableLayer;

  /// What backward() reads is where the backend reaches it.
  void require_reachable(const B& backend) const {
    arrays_.require_reachable(backend, "backward");
    detail::require_reachable(backend, "backward", "x", recorded_.x);
    detail::require_reachable(backend, "backward", "memory", recorded_.memory.keys);
    detail::require_reachable(backend, "backward", "memory", recorded_.memory.values);
    detail::require_reachable(backend, "backward", "the keys", recorded_.key);
  }

  std::uint64_t version_ = 0;  // of the weights
  detail::RecordedTensors<T> recorded_;
  detail::RecordedLists lists_;
  AttentionTape<T, B> attention_;
  detail::KeptArrays<T, B> arrays_;
  detail::InPlace<detail::RecordedPolicies<T, B>> policies_;
};

}  // namespace mha::inline MHA_NAMESPACE
