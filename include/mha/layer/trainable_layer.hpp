// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backward.hpp"
#include "../block/arguments.hpp"
#include "../block/device_gradients.hpp"
#include "../block/recording.hpp"
#include "../block/rows.hpp"
#include "../block/trainable.hpp"
#include "../block/weights_version.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../core/workspace.hpp"
#include "../device_score_gradients.hpp"
#include "../policy/sink.hpp"
#include "../positions.hpp"
#include "../staged.hpp"
#include "backward_call.hpp"
#include "backward_steps.hpp"
#include "cached_call.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "explain.hpp"
#include "gradients.hpp"
#include "products.hpp"
#include "score_sums.hpp"
#include "stages.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class Layer;  // in layer.hpp

namespace detail {

/// The heads' outputs as rows (B·L, Hq·Dv); gated in memory of the frame.
template <class B, class Concat, class T, class Frame>
TensorView<const T, 2> gated_rows(const TensorView<const T, 4>& heads, const TensorView<const T, 1>& gate, Frame& frame,
                                  const ItemsOn<B>& items) {
  if constexpr (Concat::has_gates) {
    const TensorView<T, 4> copy = take_like<T>(frame, heads);
    items(copy_items(heads, copy));
    run_gates<B, Concat, T>(copy, gate, items);
    return rows_of(TensorView<const T, 4>(copy));
  } else {
    return rows_of(heads);
  }
}

}  // namespace detail

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
template <class T, Backend B, class Policies> class TrainableLayer : public Layer<T, B, Policies> {
  using Base = Layer<T, B, Policies>;
  using A = Accumulator<T>;
  using Norm = typename Policies::Norm;
  using Position = typename Policies::Position;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;
  using Matrix = detail::LayerMatrix;
  using Score = typename Policies::Score;
  using Sink = typename Policies::Sink;
  using Rows = TensorView<const T, 3>;
  using Given = detail::BesideGradients<T>;
  using Base::backend_, Base::config_, Base::norm_, Base::parameters_, Base::position_, Base::products_, Base::mask_,
      Base::score_, Base::sink_;

  template <class = void> static constexpr bool differentiates() {
    return detail::check_trains<T, B>() && detail::check_trains_score<B, T, Score>();
  }

 public:
  using Workspace = typename B::Workspace;
  using Tape = LayerTape<T, B>;
  using Gradients = detail::LayerGradientsOn<B, T, Score>;

  using Base::Base;

  /// An empty tape for calls of this layer, and of others of its scalar and backend.
  template <int = 0> [[nodiscard]] auto tape() const {
    if constexpr (differentiates())
      return Tape{};
    else
      return detail::Refused{};
  }

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

  using Base::operator();
  /// layer(x, tape, …) and layer(x, memory, tape, …): the call without a tape, which leaves on it what backward() needs
  /// of it. Its bits are the same.
  ///
  /// Then      what a call without a tape is given. What it borrows, x and the memory stay as they are until the
  ///           backward pass has run; the result and a LogSumExp are no part of them. The memory has x's batch
  /// Errors    as without, and ShapeError if only packed weights are left and the backend does not unpack them; the
  ///           tape is as it was then, or, if memory ran out or a policy threw, has nothing recorded
  // First is apart from Extra, because clang 14 takes (X&&, Extra&&...) for the refusal of MultiHeadAttention.
  template <class X, class First, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<X>, T>&& detail::has_call_tape<First, Extra...> &&
           !detail::misplaced_memory<First, Extra...> &&
           !detail::has_foreign_memory<typename Base::KeyValues, First, Extra...>) [[nodiscard]] auto
  operator()(X&& x, First&& first, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_recording<T, B, X, First, Extra...>())
      return detail::Refused{};
    else
      return record_call(x, first, extra...);
  }

  /// The gradients of ⟨dy, y⟩ for the call on the tape: those of the parameters are added to `gradients`, that of x is
  /// returned, or written to mha::into(dx), or added, in T, to what mha::add_to(dx) holds.
  ///
  /// Shapes    dy as y  →  dx as x; mha::memory_into(d_memory) as the memory, which a call with one needs
  /// Then      gradients, without which those of the parameters are not computed; mha::into(dx) or mha::add_to(dx),
  ///           mha::memory_into(d_memory) or mha::memory_into(mha::add_to(d_memory)), BiasGradient(table), which writes
  ///           the gradient of the call's AdditiveBias, ScoreGradient(score), which writes those of the numbers of the
  ///           call's score, LogSumExpGradient(d) (B, Hq, Lq) of what a LogSumExp has, a Workspace, another value of
  ///           the backend's type. Masks, scores and all else of the call are on the tape
  /// Numerics  sums in Accumulator<T>, over rows of bias, norm and gates in double for float; the same bits for any
  ///           number of threads; a row whose gradient is exactly 0, as that of a hidden key, adds nothing, whatever
  ///           stands in it. A NaN in dy reaches the gradients of W_O and of gates, even where the row sees no key
  /// Memory    with a Workspace and mha::into() nothing is allocated after the first step of a shape. On a device
  ///           a call waits only for a ScoreGradient, because the host has it, and takes memory there for it
  /// Errors    before anything is computed, ShapeError if nothing is on the tape, or it is of other weights or
  ///           policies than the layer has now, for example by another layer that shares its weights, a size is not the
  ///           call's, gradients are of other sizes, a result overlaps another, or what is read, or there is a
  ///           BiasGradient without an AdditiveBias in the call, or a ScoreGradient without a trained score of its type
  ///           there. After any other exception, such as of a functor that threw, gradients may have part of a step
  template <SequenceOf<T> DY, class... Extra>
  auto backward(const DY& dy, const std::type_identity_t<Tape>& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_layer_backward_arguments<Gradients, Extra...>()) {
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
  // Refused in one sentence.
  template <class DY, class OfTape, class... Extra>
  requires(!detail::takes_backward<T, Tape, DY, OfTape>) detail::Refused backward(const DY&, const OfTape&, Extra&&...)
  const { return detail::refuse_backward<T, Tape, DY, OfTape>(); }

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
  static constexpr bool trains = detail::trains_on<B, T, Score>, has_sink = !std::is_same_v<Sink, NoSink>;

  Index sinks() const { return has_sink ? config_.num_heads : 0; }
  /// Those of the gradients, with null data.
  LayerGradientViews<A> shapes() const {
    return {parameters_.layout(static_cast<A*>(nullptr)), TensorView<A, 1>{nullptr, {sinks()}, {1}}};
  }

  template <class X, class First, class... Extra> auto record_call(const X& x, First& first, Extra&... extra) const {
    const Rows from = detail::read_sequence(x);
    if constexpr (Sequence<First>) {
      return record_into(x, from, Rows(detail::read_memory<B>(first)), true, extra...);
    } else {
      return record_into(x, from, from, false, first, extra...);
    }
  }

  void require_trainable(const char* call) const {
    this->require_weights(call);
    detail::require_unpackable_weights(!parameters_.packed_only() || products_.unpacks(), call, "layer",
                                       parameters_.size(), B::name);
  }

  template <class X, class... Extra>
  auto record_into(const X&, const Rows& x, const Rows& memory, bool cross, Extra&... extra) const {
    this->check(x, memory);
    require_trainable("layer");
    return detail::into_or_returned<X, T>(
        backend_, x, this->output_width(), [&](const TensorView<T, 3>& y) { record(x, memory, cross, y, extra...); },
        extra...);
  }

  template <class... Extra>
  MHA_NO_INLINE void record(const Rows& x, const Rows& memory, bool cross, const TensorView<T, 3>& y,
                            Extra&... extra) const {
    const Config& c = config_;
    const Index batch = x.extent[0], length = x.extent[1];
    Tape& tape = detail::given_tape<Tape>(extra...);
    this->check_result(x, y);
    const B& backend = detail::backend_or(backend_, extra...);
    detail::require_residual(backend, x, this->output_width(), extra...);
    detail::CallScope<B> scope(backend, extra...);
    typename detail::KeptArrays<T, B>::Draft kept(tape.arrays_, backend, "layer");
    const detail::HeadSizes of_heads{c.num_heads, c.value_dim};
    const auto heads = detail::head_buffers<T, false>(kept, batch, length, {of_heads})[0];
    auto made = detail::projected<B>(c, x, memory, true, kept);
    if constexpr (Norm::has_weights) {
      made.q_before_norm = detail::take_like<T>(kept, made.q);
      made.key_before_norm = detail::take_like<T>(kept, made.to_key);
    }
    const detail::CallNames names = detail::layer_names(x, memory);
    const Borrowed<Index> positions = detail::find_row_positions<Position>(x, extra...);
    const auto given = this->options(batch, memory, extra...);
    const TensorView<const T, 4> q = made.q;
    const auto mask = detail::intersect(mask_.there(), detail::collect_masks(extra...));
    const auto of_call = detail::collect_scores(extra...);
    const auto scores = detail::chain(score_.there(), of_call);
    auto checked = detail::attend_call<T, detail::memory_of<B>>(
        names, heads, q, detail::kv_of(names, q, made.key, made.value, given.ragged), mask, scores, sink_.there(),
        given, scope.frame);
    const detail::NamedArray read[] = {{"x", detail::footprint(x)},
                                       {"the memory", detail::footprint(memory)},
                                       {"the Sink", detail::footprint(checked.sink.data, checked.sink.size)}};
    const detail::NamedArray written[] = {{"the result", detail::footprint(y)},
                                          {"log-sum-exp", detail::footprint(checked.log_sum_exp)}};
    for (const auto& to : written) detail::require_recorded_apart("layer", to, read, checked.score);
    detail::require_supported(backend, "layer");
    detail::require_reachable(backend, "layer", "x", x);
    detail::require_reachable(backend, "layer", "memory", memory);
    detail::require_written(backend, y, checked.log_sum_exp, extra...);
    const auto& score = score_.there();
    const auto& sink = sink_.there();
    detail::PoliciesOf<T, B, std::remove_const_t<decltype(mask)>, std::remove_cvref_t<decltype(score)>,
                       std::remove_const_t<decltype(of_call)>, std::remove_cvref_t<decltype(sink)>>
        policies(mask, score, of_call, sink, given);
    checked.states = tape.attention_.begin(backend, "layer", checked);
    kept.keep();
    tape.policies_.emplace(std::move(policies));
    tape.version_ = parameters_.version();
    tape.recorded_ = {sinks(),
                      policies_now_,
                      cross,
                      x,
                      memory,
                      q,
                      made.key,
                      made.value,
                      heads,
                      made.q_before_norm,
                      made.key_before_norm,
                      positions};

    const auto call = detail::staged(backend, std::move(checked), scope.frame, scope.workspace);
    const auto w = parameters_.views();
    this->project(scope, x, made, detail::positions_of<Position>(scope, x, made.rows, call, memory, extra...), w);
    detail::run<true>(backend, call, scope.workspace);
    const auto rows = detail::gated_rows<B, Concat, T>(heads, products_.vectors(w).gate, scope.frame, scope.items);
    detail::finish_rows<Output>(products_, rows, w, y, scope.frame, scope.items, extra...);
    tape.attention_.end();
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
    detail::require_beside_gradients(recorded, given, config_.kv_model);
    if (gradients != nullptr) {
      detail::require_gradients("backward", detail::shapes_of(*gradients), shapes());
      if constexpr (trains) detail::require_score_gradients("backward", score_.own(), detail::shaped(*gradients).score);
    }
    detail::require_layer_apart(recorded, dy, parameters_.views(), gradients, dx, given);
  }

  MHA_NO_INLINE void back(const Rows& dy, const Tape& tape, Gradients* gradients, const detail::RowGradient<T>& d_x,
                          const Given& given, const B& backend, Workspace& workspace) const {
    const TensorView<T, 3>&dx = d_x.to, &d_memory = given.memory.to;
    const auto d_log_sum_exp = given.d_log_sum_exp.value_or(TensorView<const A, 3>{});
    check_backward(dy, tape, gradients, dx, given);
    detail::require_supported(backend, "backward");
    tape.require_reachable(backend);
    detail::require_backward_reachable(backend, dy, dx, detail::memory_of_given(gradients));
    detail::require_reachable(backend, "backward", "d_memory", d_memory);
    detail::require_reachable(backend, "backward", "LogSumExpGradient", d_log_sum_exp);
    detail::CallScope<B> scope(backend, workspace);
    const Config& c = config_;
    const auto& recorded = tape.recorded_;
    const detail::HeadSizes q{c.num_heads, c.head_dim}, k{c.num_kv_heads, c.head_dim}, v{c.num_kv_heads, c.value_dim},
        heads{c.num_heads, c.value_dim};
    const auto w = products_.readable(backend, parameters_.views(), parameters_.packed_only(),
                                      parameters_.layout(static_cast<const T*>(nullptr)), scope.frame);
    detail::BackwardTensors<T> tensors{recorded, dy, d_x, given.memory, {}, {}, {}, {}, {}, given.bias.wanted()};
    tensors.gated = detail::gated_rows<B, Concat, T>(recorded.heads, w.gate, scope.frame, scope.items);
    const Index *const x = recorded.x.extent, *const memory = recorded.memory.extent;
    tensors.d_heads = detail::head_buffers<T, false>(scope.frame, x[0], x[1], {heads})[0];
    // Side by side, so that one product makes all gradients of what comes from the same rows.
    if (!recorded.cross) {
      const auto all = detail::head_buffers<A, true>(scope.frame, x[0], x[1], {q, k, v});
      tensors.d_q = all[0], tensors.d_key = all[1], tensors.d_value = all[2];
    } else {
      tensors.d_q = detail::head_buffers<A, true>(scope.frame, x[0], x[1], {q})[0];
      const auto both = detail::head_buffers<A, true>(scope.frame, memory[0], memory[1], {k, v});
      tensors.d_key = both[0], tensors.d_value = both[1];
    }
    const auto of_score = detail::score_of(gradients);
    detail::LayerBackwardSteps<T, B, Policies, std::remove_const_t<decltype(of_score)>> steps(
        norm_, position_, w, tensors, detail::named_there(gradients, shapes()), of_score, backend, scope.workspace,
        scope.frame);
    const detail::HeadGradients<T> attention{
        recorded.q,
        recorded.key,
        recorded.value,
        recorded.heads,
        tensors.d_heads,
        d_log_sum_exp,
        tensors.d_q,
        tensors.d_key,
        tensors.d_value,
        steps.sinks(),
        given.bias,
        given.score,
        {{"dx", detail::footprint(dx)}, {"d_memory", detail::footprint(d_memory)}}};
    tape.policies_.get()->backward(backend, tape.attention_, attention, steps, scope.workspace);
  }

  std::uint64_t policies_now_ = detail::next_version();  // of this layer and its copies
};

}  // namespace mha::inline MHA_NAMESPACE
