// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backward.hpp"
#include "../block/device_gradients.hpp"
#include "../block/recording.hpp"
#include "../block/rows.hpp"
#include "../block/weights_version.hpp"
#include "../call_backend.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../core/workspace.hpp"
#include "../device_score_gradients.hpp"
#include "../policy/sink.hpp"
#include "../positions.hpp"
#include "backward_call.hpp"
#include "backward_interface.hpp"
#include "backward_steps.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "explain.hpp"
#include "gradients.hpp"
#include "key_value_gradients.hpp"
#include "memory_tape.hpp"
#include "products.hpp"
#include "score_sums.hpp"
#include "stages.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class RecordingLayer;  // in recording_layer.hpp

/// A layer with its backward pass, which costs a program nothing that does not call it.
///
///   auto tape = layer.tape();
///   auto gradients = layer.gradients();
///   y = layer(x, tape, mha::Padding{lengths});
///   dx = layer.backward(dy, tape, gradients);
///   layer.update([&](auto& p) { p.for_each(gradients, step); });
///
/// Formula   of L = ⟨dy, y⟩: dW_O = headsᵀ dy, db_O = Σ dy, dheads = dy W_Oᵀ; attention_backward(); rotary turned back,
///           the norm's derivative; dW_Q = xᵀ dQ, db_Q = Σ dQ, …;  dx = dQ W_Qᵀ + dK W_Kᵀ + dV W_Vᵀ
/// Source    Vaswani et al. 2017, §3.2.2; Dao et al. 2022, appendix B.2
template <class T, Backend B, class Policies> class TrainableLayer : public RecordingLayer<T, B, Policies> {
  using Base = RecordingLayer<T, B, Policies>;
  using A = Accumulator<T>;
  using Norm = typename Policies::Norm;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;
  using Matrix = detail::LayerMatrix;
  using Score = typename Policies::Score;
  using Sink = typename Policies::Sink;
  using Rows = TensorView<const T, 3>;
  using Given = detail::BesideGradients<T>;
  using Base::backend_, Base::config_, Base::norm_, Base::parameters_, Base::position_, Base::products_, Base::score_,
      Base::sink_, Base::has_sink, Base::policies_now_, Base::sinks, Base::differentiates, Base::require_trainable;

 public:
  using Workspace = typename B::Workspace;
  using Tape = typename Base::Tape;
  using KeyValueGradients = mha::KeyValueGradients<A, B>;
  using Gradients = detail::LayerGradientsOn<B, T, Score>;

  using Base::Base;

  /// Zero gradients of all that backward() differentiates: matrices, biases, norms, gates, the Sink's logits and the
  /// trained numbers of the score.
  template <int = 0> [[nodiscard]] Gradients gradients() const {
    const auto layout = [this](A* data) {
      LayerGradientViews<A> v{parameters_.layout(data), {}};
      if (sinks() > 0) v.sink = view(data + parameters_.size(), sinks());
      return v;
    };
    return detail::layer_gradients<B, T>(backend_, parameters_.size() + sinks(), layout, score_.own(),
                                         config_.num_heads);
  }

  /// Zero gradients of keys and values that calls attend to and do not make: of so many sequences and positions.
  template <int = 0> [[nodiscard]] KeyValueGradients key_value_gradients(Index batch, Index length) const {
    return {backend_, batch, length, config_.num_kv_heads, config_.head_dim, config_.value_dim};
  }

  /// The layer's score and sink, with the numbers that update() gave them.
  const Score& score() const { return score_.own(); }
  const Sink& sink() const { return sink_.own(); }

  /// As Layer's; p.score and p.sink are the layer's own here, and p.for_each(gradients, step) passes their numbers too.
  template <class F> void update(F&& f) {
    if constexpr (!trains && !has_sink) {
      Base::update(f);
    } else {
      std::optional<detail::Kept<B, Score>> kept_score;
      std::optional<detail::Kept<B, Sink>> kept_sink;
      Base::update([&](const ParameterViews<T>& views) {
        Score score = score_.own();
        Sink sink = sink_.own();
        const TrainedParameters<T, Score, Sink> p{views, score, sink};
        f(p);
        static_cast<void>(sink.logits(config_.num_heads));
        if constexpr (trains) kept_score.emplace(detail::checked_policy(std::move(score), config_.num_heads), backend_);
        if constexpr (has_sink) kept_sink.emplace(std::move(sink), backend_);
      });
      if constexpr (trains) score_ = std::move(*kept_score);
      if constexpr (has_sink) sink_ = std::move(*kept_sink);
      policies_now_ = detail::next_version();
    }
  }

  /// The gradients of ⟨dy, y⟩ for the call on the tape: those of the parameters are added to `gradients`, that of x is
  /// returned, or written to mha::into(dx), or added, in T, to what mha::add_to(dx) holds.
  ///
  /// Shapes    dy as y  →  dx as x; mha::memory_into(d_memory) as the memory, which a call with one needs
  /// Then      gradients, without which those of the parameters are not computed; mha::into(dx) or mha::add_to(dx),
  ///           mha::memory_into(d_memory) or mha::memory_into(mha::add_to(d_memory)), BiasGradient(table), which writes
  ///           the gradient of the call's AdditiveBias, ScoreGradient(score), which writes those of the numbers of the
  ///           call's score, LogSumExpGradient(d) (B, Hq, Lq) of what a LogSumExp has, a Workspace, another value of
  ///           the backend's type. A call with a step of a cache, or on what project_memory() returned, needs
  ///           key_value_gradients(), which are added to, or mha::StopGradient{}. Masks, scores and all else of the
  ///           call are on the tape
  /// Numerics  sums in Accumulator<T>, over rows of bias, norm and gates in double for float; the same bits for any
  ///           number of threads; a row whose gradient is exactly 0, as that of a hidden key, adds nothing, whatever
  ///           stands in it. A NaN in dy reaches the gradients of W_O and of gates, even where the row sees no key
  /// Memory    with a Workspace and mha::into() nothing is allocated after the first step of a shape. On a device
  ///           a call waits only for a ScoreGradient, because the host has it, and takes memory there for it
  /// Errors    before anything is computed, ShapeError if nothing is on the tape, or it is of other weights or
  ///           policies than the layer has now, for example by another layer that shares its weights, a size is not the
  ///           call's, gradients are of other sizes, a result overlaps another, or what is read, or there is a
  ///           BiasGradient without an AdditiveBias in the call, a ScoreGradient without a trained score of its type
  ///           there, or no word of where the gradients of keys go that other calls attend to too. After any other
  ///           exception, such as of a functor that threw, gradients may have part of a step
  template <SequenceOf<T> DY, class... Extra>
  auto backward(const DY& dy, const std::type_identity_t<Tape>& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_layer_backward_arguments<Gradients, Extra...>() ||
                  !detail::check_key_value_gradients<KeyValueGradients, Extra...>()) {
      return detail::Refused{};
    } else {
      detail::check_memory_of<B, DY>();
      const auto given = detail::read_sequence(dy);
      detail::check_score_destinations<B, Extra...>();
      const B& backend = detail::backend_or(backend_, extra...);
      Workspace own;
      Workspace& workspace = detail::workspace_or(own, extra...);
      Gradients* const gradients = detail::find_gradients<Gradients>(extra...);
      const Given beside = detail::find_beside_gradients<T>(extra...);
      return detail::gradient_of_rows<DY, T>(
          backend, given, config_.d_model,
          [&](const auto& dx) { back(given, tape, gradients, dx, beside, backend, workspace); }, extra...);
    }
  }
  /// The same for a recorded project_memory(): d, the gradients of the keys and values that it returned, become those
  /// of W_K, W_V, their biases and the norm of the keys, which are added to `gradients`, and that of the memory, which
  /// is returned (B, Lk, E_kv), or written to mha::into(d_memory), or added to what mha::add_to(d_memory) holds.
  ///
  /// Then      gradients, mha::into() or mha::add_to(), a Workspace, another value of the backend's type
  /// Errors    before anything is computed, ShapeError if nothing is on the tape, or the weights were changed since, a
  ///           size is not the memory's, or a result overlaps another, or what is read
  template <class... Extra>
  auto backward(const KeyValueGradients& d, const MemoryTape<T, B>& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_memory_backward_arguments<Gradients, Extra...>()) {
      return detail::Refused{};
    } else {
      const B& backend = detail::backend_or(backend_, extra...);
      Workspace own;
      Workspace& workspace = detail::workspace_or(own, extra...);
      Gradients* const gradients = detail::find_gradients<Gradients>(extra...);
      const auto to = [&](const detail::MemoryTo<T>& d_memory) {
        back_memory(d, tape, gradients, d_memory, backend, workspace);
      };
      if constexpr ((detail::MemoryIntoArgument<Extra> || ...))
        to(detail::find_memory_into<T>(extra...));
      else
        return detail::gradient_of_rows<Rows, T>(
            backend, tape.call_.memory.keys, config_.kv_model,
            [&](const detail::RowGradient<T>& d_memory) {
              to({d_memory, true});
            },
            extra...);
    }
  }
  // Refused in one sentence.
  template <class DY, class OfTape, class... Extra>
  requires(!detail::takes_backward<T, Tape, DY, OfTape>) detail::Refused backward(const DY&, const OfTape&, Extra&&...)
  const { return detail::refuse_layer_backward<T, Tape, DY, OfTape>(); }

  /// What the backward pass of a call of this shape costs, stage by stage; masks of the call intersect with the
  /// layer's.
  ///
  /// Errors    as cost()
  template <Mask... Masks>
  [[nodiscard]] BackwardCost backward_cost(Index batch, Index queries, Index keys, const Masks&... masks) const {
    constexpr bool on_device = !detail::computes_on_host<B>;
    const detail::CallRows rows = detail::call_rows<T>(config_, batch, queries, keys, this->all_masks(masks...));
    BackwardCost cost = detail::layer_backward_cost<T, Policies, on_device>(config_, rows);
    if (!on_device && parameters_.packed_only())
      cost.scratch_bytes += sizeof(T) * detail::matrix_numbers<Output>(config_);
    return cost;
  }
  /// Its masks, products, bytes and memory, and what of the layer's score is trained, one fact a line.
  template <Mask... Masks>
  [[nodiscard]] std::string explain_backward(Index batch, Index queries, Index keys, const Masks&... masks) const {
    using All = std::remove_cvref_t<decltype(this->all_masks(masks...))>;
    return detail::explain_layer_backward<B, T, All>(backward_cost(batch, queries, keys, masks...), score_.own(),
                                                     double(batch) * queries * keys);
  }

 private:
  static constexpr bool trains = detail::trains_on<B, T, Score>;

  /// Those of the gradients, with null data.
  LayerGradientViews<A> shapes() const {
    return {parameters_.layout(static_cast<A*>(nullptr)), TensorView<A, 1>{nullptr, {sinks()}, {1}}};
  }

  void check_backward(const Rows& dy, const Tape& tape, const Gradients* gradients, const TensorView<T, 3>& dx,
                      const Given& given) const {
    using detail::require;
    const auto& recorded = tape.recorded_;
    detail::require_recorded(tape.recorded(), tape.version_ == parameters_.version(), "layer");
    require(recorded.policies == policies_now_,
            "backward: the tape was recorded under other policies: by another layer of these weights, or before an "
            "update() of this one's score or Sink");
    require_trainable("backward");
    const Rows& x = recorded.x;
    detail::require_gradient_rows("x", x, "dy", dy, this->output_width());
    detail::require_gradient_rows("x", x, "dx", dx, config_.d_model);
    detail::require_beside_gradients(recorded, given, config_);
    if (gradients != nullptr) {
      detail::require_gradients("backward", detail::shapes_of(*gradients), shapes());
      if constexpr (trains) detail::require_score_gradients("backward", score_.own(), detail::shaped(*gradients).score);
    }
    detail::require_layer_apart(recorded, dy, parameters_.views(), gradients, dx, given);
  }

  MHA_NO_INLINE void back(const Rows& dy, const Tape& tape, Gradients* gradients, const detail::RowGradient<T>& d_x,
                          const Given& given, const B& backend, Workspace& workspace) const {
    const TensorView<T, 3>&dx = d_x.to, &d_memory = given.memory.to, &d_values = given.memory.values.to;
    const auto d_log_sum_exp = given.d_log_sum_exp.value_or(TensorView<const A, 3>{});
    check_backward(dy, tape, gradients, dx, given);
    detail::require_supported(backend, "backward");
    tape.require_reachable(backend);
    detail::require_backward_reachable(backend, dy, dx, detail::memory_of_given(gradients));
    detail::require_reachable(backend, "backward", "d_memory", d_memory);
    detail::require_reachable(backend, "backward", "d_values", d_values);
    detail::require_reachable(backend, "backward", "LogSumExpGradient", d_log_sum_exp);
    detail::require_reachable(backend, "backward", "the KeyValueGradients' key", given.key_values.key);
    detail::require_reachable(backend, "backward", "the KeyValueGradients' value", given.key_values.value);
    detail::CallScope<B> scope(backend, workspace);
    const Config& c = config_;
    const auto& recorded = tape.recorded_;
    const detail::HeadSizes q{c.num_heads, c.head_dim}, k{c.num_kv_heads, c.head_dim}, v{c.num_kv_heads, c.value_dim},
        heads{c.num_heads, c.value_dim};
    const auto w = products_.readable(backend, parameters_.views(), parameters_.packed_only(),
                                      parameters_.layout(static_cast<const T*>(nullptr)), scope.frame);
    detail::BackwardTensors<T> tensors{recorded, dy, d_x, given.memory, {}, {}, {}, {}, {}};
    tensors.d_memory.apart = given.memory.apart || !recorded.memory.same();
    tensors.key_values = given.key_values;
    tensors.of_bias = given.bias.wanted();
    tensors.gated = detail::gated_rows<B, Concat, T>(recorded.heads, w.gate, scope.frame, scope.items);
    const Index *const x = recorded.x.extent, *const memory = recorded.memory.keys.extent;
    tensors.d_heads = detail::head_buffers<T, false>(scope.frame, x[0], x[1], {heads})[0];
    // Side by side, so that one product makes all gradients of what comes from the same rows.
    if (recorded.keys == detail::KeysFrom::x || recorded.keys == detail::KeysFrom::cache) {
      const auto all = detail::head_buffers<A, true>(scope.frame, x[0], x[1], {q, k, v});
      tensors.d_q = all[0], tensors.d_key = all[1], tensors.d_value = all[2];
    } else {
      tensors.d_q = detail::head_buffers<A, true>(scope.frame, x[0], x[1], {q})[0];
    }
    if (recorded.keys == detail::KeysFrom::memory) {
      const auto both = tensors.d_memory.apart
                            ? detail::head_buffers<A, false>(scope.frame, memory[0], memory[1], {k, v})
                            : detail::head_buffers<A, true>(scope.frame, memory[0], memory[1], {k, v});
      tensors.d_key = both[0], tensors.d_value = both[1];
    }
    const bool passes = recorded.keys == detail::KeysFrom::cache || given.key_values.given;
    if (passes) {
      tensors.d_all_key = detail::take_like<A>(scope.frame, recorded.key);
      tensors.d_all_value = detail::take_like<A>(scope.frame, recorded.value);
    }
    const auto of_score = detail::score_of(gradients);
    detail::LayerBackwardSteps<T, B, Policies, std::remove_const_t<decltype(of_score)>> steps(
        norm_, position_, w, tensors, detail::named_there(gradients, shapes()), of_score, backend, scope.workspace,
        scope.frame);
    GradientTo<T> key, value;
    if (passes)
      key = tensors.d_all_key, value = tensors.d_all_value;
    else if (recorded.made_keys())
      key = tensors.d_key, value = tensors.d_value;
    const detail::HeadGradients<T> attention{recorded.q,
                                             recorded.key,
                                             recorded.value,
                                             recorded.heads,
                                             tensors.d_heads,
                                             recorded.key_offsets,
                                             d_log_sum_exp,
                                             tensors.d_q,
                                             key,
                                             value,
                                             steps.sinks(),
                                             given.bias,
                                             given.score,
                                             {{"dx", detail::footprint(dx)},
                                              {"d_memory", detail::footprint(d_memory)},
                                              {"d_values", detail::footprint(d_values)}}};
    tape.policies_.get()->backward(backend, tape.attention_, attention, steps, scope.workspace);
  }

  MHA_NO_INLINE void back_memory(const KeyValueGradients& d, const MemoryTape<T, B>& tape, Gradients* gradients,
                                 const detail::MemoryTo<T>& d_memory, const B& backend, Workspace& workspace) const {
    const Config& c = config_;
    const auto& memory = tape.call_.memory;
    detail::require(tape.recorded(),
                    "backward: nothing was recorded on the tape: call project_memory(memory, tape) "
                    "first");
    detail::require(
        tape.call_.version == parameters_.version(),
        "backward: the tape was recorded with other weights: by another layer, or before this one's weights changed");
    require_trainable("backward");
    detail::require_memory_to("the project_memory() on the tape", memory, d_memory, c);
    const auto key = d.key.view(), value = d.value.view();
    const RowPositions here = tape.call_.rows();
    const Index rows[] = {memory.keys.extent[0], memory.keys.extent[1]};
    const detail::HeadSizes k{c.num_kv_heads, c.head_dim}, v{c.num_kv_heads, c.value_dim};
    detail::CallScope<B> scope(backend, workspace);
    const auto own = d_memory.apart ? detail::head_buffers<A, false>(scope.frame, rows[0], rows[1], {k, v})
                                    : detail::head_buffers<A, true>(scope.frame, rows[0], rows[1], {k, v});
    detail::require_key_value_gradients<TensorView<A, 4>>("the memory", here.sequences, here.longest, own[0], own[1],
                                                          key, value);
    if (gradients != nullptr) detail::require_gradients("backward", detail::shapes_of(*gradients), shapes());
    const auto numbers = detail::memory_of_given(gradients);
    const detail::NamedArray read[] = {{"the memory", detail::footprint(memory.keys)},
                                       {"the memory", detail::footprint(memory.values)},
                                       {"the KeyValueGradients' key", detail::footprint(key)},
                                       {"the KeyValueGradients' value", detail::footprint(value)}},
                             written[] = {detail::named_place(d_memory.apart ? "d_keys" : "d_memory", d_memory),
                                          detail::named_place("d_values", d_memory.values, d_memory.to)};
    detail::require_written_apart(written, read, {"the gradients", detail::footprint(numbers)}, parameters_.views());
    detail::require_supported(backend, "backward");
    tape.arrays_.require_reachable(backend, "backward");
    detail::require_rows_reachable(backend, "backward", memory);
    detail::require_reachable(backend, "backward", "the KeyValueGradients' key", key);
    detail::require_reachable(backend, "backward", "the KeyValueGradients' value", value);
    detail::require_reachable(backend, "backward", "d_values", d_memory.values.to);
    detail::require_backward_reachable(backend, Rows{}, d_memory.to, numbers);
    const RowPositions there = detail::staged_positions(here, scope.backend, scope.frame, scope.workspace);
    detail::RecordedTensors<T> recorded;
    recorded.keys = detail::KeysFrom::memory;
    recorded.memory = memory;
    recorded.key_before_norm = tape.call_.key_before_norm;
    const auto w = products_.readable(backend, parameters_.views(), parameters_.packed_only(),
                                      parameters_.layout(static_cast<const T*>(nullptr)), scope.frame);
    detail::BackwardTensors<T> tensors{recorded, {}, {}, d_memory, {}, {}, {}, own[0], own[1]};
    auto to = detail::named_there(gradients, shapes());
    to.sink = {};
    const auto of_score = detail::score_of(gradients);
    detail::LayerBackwardSteps<T, B, Policies, std::remove_const_t<decltype(of_score)>> steps(
        norm_, position_, w, tensors, to, of_score, backend, scope.workspace, scope.frame);
    // The gradients as they come lie in rows of positions, those that go on as the memory does.
    const RowPositions from{Origins(Index{0}), there.offsets, there.sequences, there.longest};
    scope.items(detail::KeyGradientItems<A>(key, value, own[0], own[1], {}, {}, from,
                                            {Origins(Index{0}), nullptr, there.sequences, there.longest}));
    steps.memory_back(there);
  }
};

}  // namespace mha::inline MHA_NAMESPACE
