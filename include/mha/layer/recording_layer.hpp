// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../block/arguments.hpp"
#include "../block/recording.hpp"
#include "../block/rows.hpp"
#include "../block/trainable.hpp"
#include "../block/weights_version.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/borrowed.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../policy/sink.hpp"
#include "../positions.hpp"
#include "../staged.hpp"
#include "backward_call.hpp"
#include "backward_interface.hpp"
#include "cached_call.hpp"
#include "config.hpp"
#include "gradients.hpp"
#include "key_values.hpp"
#include "memory_rows.hpp"
#include "memory_tape.hpp"
#include "products.hpp"
#include "recorded_keys.hpp"
#include "stages.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class ProjectingLayer;  // in projecting_layer.hpp

/// A layer whose calls may leave on a tape what their backward pass needs, which costs a program nothing that gives
/// none.
template <class T, Backend B, class Policies> class RecordingLayer : public ProjectingLayer<T, B, Policies> {
  using Base = ProjectingLayer<T, B, Policies>;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;
  using Score = typename Policies::Score;
  using Rows = TensorView<const T, 3>;
  using KeysFrom = detail::KeysFrom;

 public:
  using Tape = LayerTape<T, B>;

  using typename Base::KeyValues;

  using Base::Base;

  /// An empty tape for calls of this layer, and of others of its scalar and backend.
  template <int = 0> [[nodiscard]] auto tape() const {
    if constexpr (differentiates())
      return Tape{};
    else
      return detail::Refused{};
  }

  /// The same for project_memory(memory, tape).
  template <int = 0> [[nodiscard]] auto memory_tape() const {
    if constexpr (differentiates())
      return MemoryTape<T, B>{};
    else
      return detail::Refused{};
  }

  using Base::operator();
  /// layer(x, tape, …), layer(x, memory, tape, …), layer(x, keys, values, tape, …) and layer(x, step[i], tape, …): the
  /// call without a tape, which leaves on it what backward() needs of it. Its bits are the same.
  ///
  /// Then      what a call without a tape is given. What it borrows, x and the memory stay as they are until the
  ///           backward pass has run; the result and a LogSumExp are no part of them. The memory has x's batch. Of a
  ///           step, and of a source, the tape copies the keys and values of all positions, so that those may go on
  /// Errors    as without, and ShapeError if only packed weights are left and the backend does not unpack them, or
  ///           the step is of a recordable cache; the tape is as it was then, or, if memory ran out or a policy threw,
  ///           has nothing recorded
  // First is apart from Extra, because clang 14 takes (X&&, Extra&&...) for the refusal of MultiHeadAttention.
  template <class X, class First, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<X>, T>&& detail::has_call_tape<First, Extra...> &&
           !detail::misplaced_memory<First, Extra...> && !detail::has_foreign_memory<KeyValues, First, Extra...>)
      [[nodiscard]] auto
      operator()(X&& x, First&& first, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_recording<T, B, X, First, Extra...>())
      return detail::Refused{};
    else
      return record_call(x, first, extra...);
  }

  using Base::project_memory;
  /// project_memory(memory, …), which leaves on the tape what layer.backward(d, tape, …) needs: d are the gradients of
  /// the keys and values that it returns, of whatever calls attended to them. Its bits are the same.
  ///
  /// Then      what project_memory() is given; the memory stays as it is until the backward pass has run
  /// Errors    as without, and ShapeError if only packed weights are left and the backend does not unpack them; the
  ///           tape is as it was then, or, if memory ran out or a policy threw, has nothing recorded
  template <class Memory, class OfTape, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<Memory>, T>&& detail::MemoryTapeArgument<OfTape>)
      [[nodiscard]] auto project_memory(Memory&& memory, OfTape&& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_memory_recording<MemoryTape<T, B>, OfTape, Memory>())
      return detail::Refused{};
    else
      return record_memory(detail::read_memory<B>(memory), tape, extra...);
  }
  /// The same of keys from some rows and values from others.
  template <class Keys, class Values, class OfTape, class... Extra>
  requires(SequenceOf<std::remove_cvref_t<Keys>, T>&& SequenceOf<std::remove_cvref_t<Values>, T>&&
               detail::MemoryTapeArgument<OfTape>)
      [[nodiscard]] auto project_memory(Keys&& keys, Values&& values, OfTape&& tape, Extra&&... extra) const {
    if constexpr (!differentiates() || !detail::check_memory_recording<MemoryTape<T, B>, OfTape, Keys, Values>())
      return detail::Refused{};
    else
      return record_memory(detail::read_memory<B>(keys, values), tape, extra...);
  }

 protected:
  using Base::backend_, Base::config_, Base::mask_, Base::norm_, Base::parameters_, Base::position_, Base::products_,
      Base::score_, Base::sink_;

  template <class = void> static constexpr bool differentiates() {
    return detail::check_trains<T, B>() && detail::check_trains_score<B, T, Score>();
  }

  static constexpr bool has_sink = !std::is_same_v<typename Policies::Sink, NoSink>;

  Index sinks() const { return has_sink ? config_.num_heads : 0; }

  void require_trainable(const char* call) const {
    this->require_weights(call);
    detail::require_unpackable_weights(!parameters_.packed_only() || products_.unpacks(), call, "layer",
                                       parameters_.size(), B::name);
  }

  std::uint64_t policies_now_ = detail::next_version();  // of this layer and its copies

 private:
  template <class... Extra>
  KeyValues record_memory(const detail::MemoryRows<T>& memory, MemoryTape<T, B>& tape, Extra&... extra) const {
    require_trainable("project_memory");
    const auto keep = [&](auto& scope, const auto& rows, const RowPositions& at, const auto& keys) {
      tape.call_.version = 0;
      typename detail::KeptArrays<T, B>::Draft kept(tape.arrays_, scope.backend, "project_memory");
      TensorView<T, 4> before{};
      if constexpr (Policies::Norm::has_weights) {
        before = detail::take_like<T>(kept, keys);
        kept.keep();
        scope.items(detail::copy_items(keys, before));
      }
      tape.take(rows, before, at);
    };
    auto made = this->made_of(memory, keep, extra...);
    tape.call_.version = parameters_.version();
    return made;
  }

  template <class X, class First, class... Extra> auto record_call(const X& x, First& first, Extra&... extra) const {
    const Rows from = detail::read_sequence(x);
    if constexpr (detail::has_value_rows<First, Extra...>)
      return [&](const auto& values, auto&... rest) {
        return record_into(KeysFrom::memory, x, from, detail::read_memory<B>(first, values), rest...);
      }(extra...);
    else if constexpr (Sequence<First>)
      return record_into(KeysFrom::memory, x, from, detail::read_memory<B>(first), extra...);
    else if constexpr (detail::is_key_values<std::remove_const_t<First>> || detail::SourceArgument<First>)
      return record_into(KeysFrom::projection, x, from, first, extra...);
    else if constexpr (detail::LayerStepArgument<First>)
      return record_into(KeysFrom::cache, x, from, first, extra...);
    else
      return record_into(KeysFrom::x, x, from, detail::read_memory<B>(x), first, extra...);
  }

  template <class X, class Memory, class... Extra>
  auto record_into(KeysFrom keys_from, const X&, const Rows& x, const Memory& memory, Extra&... extra) const {
    if constexpr (detail::LayerStepArgument<Memory>) detail::check_cached_arguments<detail::BesideTape<Extra>...>();
    this->check(x, memory);
    require_trainable("layer");
    return detail::into_or_returned<X, T>(
        backend_, x, this->output_width(),
        [&](const TensorView<T, 3>& y) { record(keys_from, x, memory, y, extra...); }, extra...);
  }

  template <class Memory, class... Extra>
  MHA_NO_INLINE void record(KeysFrom keys_from, const Rows& x, const Memory& memory, const TensorView<T, 3>& y,
                            Extra&... extra) const {
    constexpr bool cached = detail::LayerStepArgument<Memory>;
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
    auto made = detail::projected<B>(c, x, detail::memory_of_call<B>(x, memory), true, kept);
    if constexpr (Policies::Norm::has_weights) {
      made.q_before_norm = detail::take_like<T>(kept, made.q);
      made.key_before_norm = detail::take_like<T>(kept, made.to_key);
    }
    const detail::CallNames names = detail::layer_names(x, memory);
    const Borrowed<Index> positions = detail::find_row_positions<typename Policies::Position>(x, extra...);
    const auto given = this->options(batch, memory, extra...);
    const TensorView<const T, 4> q = made.q;
    const auto mask = detail::intersect(mask_.there(), detail::collect_masks(extra...));
    const auto of_call = detail::collect_scores(extra...);
    const auto scores = detail::chain(score_.there(), of_call);
    auto checked = detail::attend_call<T, detail::memory_of<B>>(
        names, heads, q, detail::recorded_source(names, q, made, memory, given.ragged), mask, scores, sink_.there(),
        given, scope.frame);
    const detail::NamedArray read[] = {{"x", detail::footprint(x)},
                                       {"the memory", detail::footprint(made.rows.keys)},
                                       {"the memory", detail::footprint(made.rows.values)},
                                       {"the keys", detail::footprint(made.key)},
                                       {"the values", detail::footprint(made.value)},
                                       {"the Sink", detail::footprint(checked.sink.data, checked.sink.size)}};
    const detail::NamedArray written[] = {{"the result", detail::footprint(y)},
                                          {"log-sum-exp", detail::footprint(checked.log_sum_exp)}};
    for (const auto& to : written) detail::require_recorded_apart("layer", to, read, checked.score);
    detail::require_supported(backend, "layer");
    detail::require_reachable(backend, "layer", "x", x);
    detail::require_memory_reachable(backend, made.rows, memory, checked.kv);
    detail::require_written(backend, y, checked.log_sum_exp, extra...);
    detail::RecordedKeys<T> keys = detail::recorded_keys<T>(keys_from, made, memory, checked.kv, given, kept);
    const auto& score = score_.there();
    const auto& sink = sink_.there();
    detail::PoliciesOf<T, B, std::remove_const_t<decltype(mask)>, std::remove_cvref_t<decltype(score)>,
                       std::remove_const_t<decltype(of_call)>, std::remove_cvref_t<decltype(sink)>>
        policies(mask, score, of_call, sink, keys.options(given));
    checked.states = tape.attention_.begin(backend, "layer", checked);
    kept.keep();
    tape.policies_.emplace(std::move(policies));
    tape.version_ = parameters_.version();
    tape.recorded_ = {sinks(),
                      policies_now_,
                      keys.from,
                      x,
                      made.rows,
                      q,
                      keys.key,
                      keys.value,
                      heads,
                      made.q_before_norm,
                      made.key_before_norm,
                      keys.gathered.offsets,
                      keys.shared,
                      positions};
    tape.lists_ = std::move(keys.lists);

    const auto call = detail::staged(backend, std::move(checked), scope.frame, scope.workspace,
                                     detail::sent_numbers(memory, scope.workspace));
    const auto w = parameters_.views();
    this->project(scope, x, made,
                  detail::positions_of<typename Policies::Position>(scope, x, made.rows, call, memory, extra...), w);
    if constexpr (cached) memory.write(made.key, made.value, parameters_.version(), scope.items);
    if constexpr (cached || KvSource<Memory>) detail::gather(scope, call.kv, call.shape, keys.gathered);
    detail::run<true>(backend, call, scope.workspace);
    const auto rows = detail::gated_rows<B, Concat, T>(heads, products_.vectors(w).gate, scope.frame, scope.items);
    detail::finish_rows<Output>(products_, rows, w, y, scope.frame, scope.items, extra...);
    tape.attention_.end();
  }
};

}  // namespace mha::inline MHA_NAMESPACE
