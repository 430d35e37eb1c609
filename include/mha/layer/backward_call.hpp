// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "../block/arguments.hpp"
#include "../block/device_gradients.hpp"
#include "../block/recording.hpp"
#include "../call.hpp"
#include "../checked_call.hpp"
#include "../core/add_to.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/overlap.hpp"
#include "../core/view.hpp"
#include "../log_sum_exp_gradient.hpp"
#include "../score_gradients.hpp"
#include "backward_interface.hpp"
#include "cache_step.hpp"
#include "call.hpp"
#include "config.hpp"
#include "gradients.hpp"
#include "key_value_gradients.hpp"
#include "key_values.hpp"
#include "memory_rows.hpp"
#include "memory_tape.hpp"
#include "parameter_views.hpp"

/// What a layer's backward() and a call that records are given, and what is refused.
namespace mha::inline MHA_NAMESPACE {

template <class T, class B> class LayerTape;

/// Where backward() writes the gradient of a memory: layer.backward(dy, tape, gradients, mha::memory_into(d_memory)),
/// or adds it to those of other layers: mha::memory_into(mha::add_to(d_memory)). Those of a call's rows of keys and
/// rows of values go apart, to mha::memory_into(d_keys, d_values), where each may be an add_to() too.
///
/// Shapes    those of the memory
template <class View, class OfValues = View> struct MemoryInto {
  View to;
  bool adds = false;
  bool apart = false;  ///< whether the next two are given
  OfValues values{};
  bool adds_values = false;
};
template <class View> [[nodiscard]] constexpr auto memory_into(const AddTo<View>& sum) {
  constexpr bool writable = !std::is_const_v<std::remove_pointer_t<decltype(View::data)>>;
  static_assert(writable,
                "mha: memory_into(add_to(m)) of a constant m: the gradient cannot be added there: name an m that is "
                "not const (see mha/layer/backward_call.hpp)");
  using Result = MemoryInto<TensorView<std::remove_cv_t<ScalarOf<View>>, View::rank>>;
  if constexpr (writable)
    return Result{sum.to, true};
  else
    return Result{};
}
template <Viewable Owner> [[nodiscard]] constexpr auto memory_into(Owner&& owner) {
  constexpr bool lasts = detail::view_lasts<Owner>();
  constexpr bool writable = !std::is_const_v<std::remove_pointer_t<decltype(detail::ViewOf<Owner>::data)>>;
  static_assert(lasts && writable,
                "mha: memory_into(m) of a temporary or a constant m: the gradient cannot be written there: name m "
                "first, and not const (see mha/layer/backward_call.hpp)");
  using Result = MemoryInto<TensorView<ScalarOf<Owner>, detail::ViewOf<Owner>::rank>>;
  if constexpr (lasts && writable)
    return Result{view(owner)};
  else
    return Result{};
}
template <class Keys, class Values> [[nodiscard]] constexpr auto memory_into(Keys&& keys, Values&& values) {
  const auto k = memory_into(std::forward<Keys>(keys));
  const auto v = memory_into(std::forward<Values>(values));
  return MemoryInto<decltype(k.to), decltype(v.to)>{k.to, k.adds, true, v.to, v.adds};
}

namespace detail {

template <class T> constexpr bool is_memory_into = false;
template <class K, class V> constexpr bool is_memory_into<MemoryInto<K, V>> = true;
template <class E>
concept MemoryIntoArgument = is_memory_into<std::remove_cvref_t<E>>;

/// A destination of memory_into(), and the sentences for what it cannot be.
template <class T, class Rows> constexpr RowGradient<T> rows_of_memory_into(const Rows& to, bool adds) {
  constexpr bool fits = SequenceOf<Rows, T>;
  static_assert(Sequence<Rows>,
                "mha: memory_into(m) takes an m with 2 or 3 axes, (L, E) or (B, L, E), as the memory has (see "
                "mha/layer/backward_call.hpp)");
  static_assert(fits || !Sequence<Rows>,
                "mha: memory_into(m) has another scalar than the layer (see mha/layer/backward_call.hpp)");
  if constexpr (fits)
    return {with_batch(to), adds};
  else
    return {};
}
/// Where memory_into(m) among a call's arguments sends the gradient.
template <class T> constexpr MemoryTo<T> find_memory_into() { return {}; }
template <class T, class E, class... Rest> constexpr MemoryTo<T> find_memory_into(const E& first, const Rest&... rest) {
  if constexpr (MemoryIntoArgument<E>) {
    MemoryTo<T> to{rows_of_memory_into<T>(first.to, first.adds), true, first.apart, {}};
    if (first.apart) to.values = rows_of_memory_into<T>(first.values, first.adds_values);
    return to;
  } else {
    return find_memory_into<T>(rest...);
  }
}

/// Where the BiasGradient among a call's arguments goes.
template <class T> constexpr BiasTo<T> find_bias_gradient() { return {}; }
template <class T, class E, class... Rest> constexpr BiasTo<T> find_bias_gradient(const E& first, const Rest&... rest) {
  if constexpr (BiasGradientArgument<E>) {
    using Scalar = ScalarOf<decltype(first.to)>;
    constexpr bool wide = std::is_same_v<Scalar, Accumulator<T>>;
    static_assert(wide || std::is_same_v<Scalar, T>,
                  "mha: the BiasGradient of a layer has the layer's scalar or its accumulator's "
                  "(see mha/layer/backward_call.hpp)");
    BiasTo<T> to{.adds = first.adds};
    if constexpr (wide)
      to.wide = first.to, to.to_wide = true;
    else if constexpr (std::is_same_v<Scalar, T>)
      to.own = first.to, to.to_own = true;
    return to;
  } else {
    return find_bias_gradient<T>(rest...);
  }
}

/// Where the ScoreGradient among a call's arguments goes.
inline ScoreTo find_score_gradient() { return {}; }
template <class E, class... Rest> ScoreTo find_score_gradient(const E& first, const Rest&... rest) {
  if constexpr (ScoreGradientArgument<E>) {
    using Score = std::remove_pointer_t<decltype(first.to)>;
    static_assert(std::is_same_v<Trained<Score>, Score>,
                  "mha: ScoreGradient takes a score of the type of the call's trained score, of several a Chain in "
                  "the order written, and nothing of this one is trained (see mha/score_gradients.hpp)");
    return {first.to, &TypeKey<Score>::at, footprint(first.to, 1)};
  } else {
    return find_score_gradient(rest...);
  }
}

/// What the KeyValueGradients or the StopGradient among the arguments of backward() says.
template <class A> constexpr KeyValuesTo<A> find_key_values_to() { return {}; }
template <class A, class E, class... Rest> constexpr KeyValuesTo<A> find_key_values_to(E& first, Rest&... rest) {
  if constexpr (KeyValueGradientsArgument<E>)
    return {first.key.view(), first.value.view(), true};
  else if constexpr (StopGradientArgument<E>)
    return {{}, {}, false, true};
  else
    return find_key_values_to<A>(rest...);
}

/// What backward() is given after the tape.
template <class T, class... Extra> BesideGradients<T> find_beside_gradients(Extra&... extra) {
  BesideGradients<T> given{find_memory_into<T>(extra...), find_bias_gradient<T>(extra...),
                           find_score_gradient(extra...)};
  if constexpr ((LogSumExpGradientArgument<Extra> || ...))
    given.d_log_sum_exp = given_d_log_sum_exp<Accumulator<T>>(extra...);
  given.key_values = find_key_values_to<Accumulator<T>>(extra...);
  return given;
}

/// The gradients of keys and values that the call on the tape did not make have a place, or are not wanted.
template <class T>
void require_key_values_to(const RecordedTensors<T>& recorded, const KeyValuesTo<Accumulator<T>>& to) {
  const bool takes = recorded.keys == KeysFrom::cache || recorded.keys == KeysFrom::projection;
  require(takes || !(to.given || to.stops), "backward: ", to.stops ? "StopGradient is" : "KeyValueGradients are",
          " given, but the call on the tape made its keys and values itself");
  require(!recorded.shared || to.given || to.stops,
          "backward: the call on the tape shares keys and values with other calls: give the KeyValueGradients that go "
          "from call to call, layer.key_value_gradients(…), or mha::StopGradient{}, with which none do");
  if (!to.given) return;
  const TensorView<const T, 4>& keys = recorded.key;
  const Borrowed<Index>& offsets = recorded.key_offsets;
  const Index sequences = offsets.data != nullptr ? offsets.size - 1 : keys.extent[0];
  const Index length = offsets.data != nullptr ? longest(offsets) : keys.extent[1];
  require_key_value_gradients("the call on the tape", sequences, length, keys, recorded.value, to.key, to.value);
}

/// There is a place for the gradients of the rows of a recorded memory, if they are wanted.
template <class T>
void require_memory_to(const char* of, const MemoryRows<T>& memory, const MemoryTo<T>& to, const Config& c) {
  if (!to.wanted) return;
  require(to.apart || memory.same(), "backward: ", of,
          " had keys and values of different rows: give mha::memory_into(d_keys, d_values) for their gradients");
  require_gradient_rows(memory.same() ? "memory" : "key", memory.keys, to.apart ? "d_keys" : "d_memory", to.to,
                        c.kv_model);
  if (to.apart)
    require_gradient_rows(memory.same() ? "memory" : "value", memory.values, "d_values", to.values.to, c.value_model);
}

/// It fits the call on the tape.
template <class T>
void require_beside_gradients(const RecordedTensors<T>& recorded, const BesideGradients<T>& given, const Config& c) {
  const bool wanted = given.memory.wanted, cross = recorded.keys == KeysFrom::memory;
  require(cross || !wanted, "backward: memory_into() is given, but the call on the tape had no memory",
          recorded.keys == KeysFrom::projection ? " of rows: keys and values of project_memory() have KeyValueGradients"
                                                : "");
  require(!cross || wanted || recorded.memory.keys.size() == 0,
          "backward: the call on the tape had a memory: give mha::memory_into(",
          recorded.memory.same() ? "d_memory) for its gradient" : "d_keys, d_values) for the gradients of its rows");
  require_memory_to("the call on the tape", recorded.memory, given.memory, c);
  if (given.d_log_sum_exp)
    require_log_sum_exp_gradient("backward", "the call on the tape", recorded.q, *given.d_log_sum_exp);
  require_key_values_to(recorded, given.key_values);
}

/// What a backward pass writes, the gradients of parameters among it, shares no memory with what else it writes, nor
/// with what it reads.
template <class Views>
void require_written_apart(std::span<const NamedArray> written, std::span<const NamedArray> read,
                           const NamedArray& gradients, const Views& parameters) {
  const auto apart = [](const NamedArray& a, const NamedArray& b) {
    require(!share_bytes(a.at, b.at), "backward: ", a.name, " overlaps ", b.name);
  };
  for (const NamedArray& from : read) apart(from, gradients);
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const NamedArray& from : read) apart(written[i], from);
    for (const NamedArray& other : written.subspan(i + 1)) apart(written[i], other);
    apart(written[i], gradients);
    require_apart_from_parameters(written[i].name, written[i].at, parameters);
  }
}

/// A place for gradients of rows, each of whose elements has memory of its own; null data if it is one of the others,
/// which are written before, and is added to.
template <class T, class... Others>
NamedArray named_place(const char* name, const RowGradient<T>& d, const Others&... others) {
  require_own_memory("backward", name, d.to, axes_of_rows);
  const bool added = d.adds && (same_view(d.to, others) || ...);
  return {name, added ? Footprint{} : footprint(d.to)};
}

/// The same of what backward() of a recorded call is given.
template <class T, class Gradients>
void require_layer_apart(const RecordedTensors<T>& recorded, const TensorView<const T, 3>& dy,
                         const ParameterViews<const T>& w, const Gradients* gradients, const TensorView<T, 3>& dx,
                         const BesideGradients<T>& given) {
  const MemoryTo<T>& memory = given.memory;
  const NamedArray read[] = {
      {"x", footprint(recorded.x)},
      {"dy", footprint(dy)},
      {"the memory", footprint(recorded.memory.keys)},
      {"the memory", footprint(recorded.memory.values)},
      {"the keys", footprint(recorded.key)},
      {"the values", footprint(recorded.value)},
      {"the LogSumExpGradient", given.d_log_sum_exp ? footprint(*given.d_log_sum_exp) : Footprint{}}};
  Footprint of_score{};
  if constexpr (requires { gradients->score; })
    if (gradients != nullptr) of_score = footprint(&gradients->score, 1);
  const NamedArray written[] = {{"the ScoreGradient", given.score.at},
                                {"the BiasGradient", footprint(given.bias.own)},
                                {"the BiasGradient", footprint(given.bias.wide)},
                                {"the KeyValueGradients' key", footprint(given.key_values.key)},
                                {"the KeyValueGradients' value", footprint(given.key_values.value)},
                                named_place("dx", RowGradient<T>{dx}),
                                named_place(memory.apart ? "d_keys" : "d_memory", memory, dx),
                                named_place("d_values", memory.values, dx, memory.to),
                                {"the gradients of the layer's score", of_score}};
  require_written_apart(written, read, {"the gradients", footprint(memory_of_given(gradients))}, w);
}

/// The sentences for what backward() may be given after the tape.
template <class Gradients, class... Extra> constexpr bool check_layer_backward_arguments() {
  static_assert(
      ((GradientsArgument<Extra> || IntoArgument<Extra> || AddToArgument<Extra> || MemoryIntoArgument<Extra> ||
        BiasGradientArgument<Extra> || ScoreGradientArgument<Extra> || LogSumExpGradientArgument<Extra> ||
        KeyValueGradientsArgument<Extra> || StopGradientArgument<Extra> || WorkspaceArgument<Extra> ||
        BackendArgument<Extra>)&&...),
      "mha: after the tape backward() takes gradients, mha::into(dx) or mha::add_to(dx), mha::memory_into(d_memory), a "
      "BiasGradient, a ScoreGradient, a LogSumExpGradient, KeyValueGradients or StopGradient, a Workspace and a "
      "backend; masks and scores are those that the tape has recorded (see mha/layer/backward_call.hpp)");
  static_assert(
      at_most_one<(IntoArgument<Extra> || AddToArgument<Extra>)...> && at_most_one<MemoryIntoArgument<Extra>...> &&
          at_most_one<BiasGradientArgument<Extra>...> && at_most_one<ScoreGradientArgument<Extra>...> &&
          at_most_one<LogSumExpGradientArgument<Extra>...> && at_most_one<WorkspaceArgument<Extra>...> &&
          at_most_one<BackendArgument<Extra>...>,
      "mha: one of mha::into(dx) and mha::add_to(dx), mha::memory_into(d_memory), a BiasGradient, a ScoreGradient, a "
      "LogSumExpGradient, a Workspace and a backend may be given once each (see mha/layer/backward_call.hpp)");
  return check_gradients<Gradients, Extra...>();
}

/// The sentences for what backward() of a layer does not take, one at a time.
template <class T, class Tape, class DY, class OfTape> Refused refuse_layer_backward() {
  constexpr bool keys = KeyValueGradientsArgument<DY>, memory = MemoryTapeArgument<OfTape>;
  static_assert(keys || !memory,
                "mha: backward() of a recorded project_memory() takes KeyValueGradients, which calls on what it "
                "returned have added to: layer.backward(d, tape) (see mha/layer/key_value_gradients.hpp)");
  static_assert(
      !keys || memory,
      "mha: backward() of KeyValueGradients takes the tape of project_memory(), layer.backward(d, tape); to a "
      "call they are given after its tape, layer.backward(dy, tape, d) (see "
      "mha/layer/key_value_gradients.hpp)");
  static_assert(!(keys && memory),
                "mha: backward() of a recorded project_memory() takes KeyValueGradients and a tape of the layer's "
                "scalar and backend: key_value_gradients() and memory_tape() make them (see "
                "mha/layer/key_value_gradients.hpp)");
  if constexpr (keys || memory)
    return {};
  else
    return refuse_backward<T, Tape, DY, OfTape>();
}

/// The sentences for what backward() of a recorded project_memory() may be given after the tape: one place, or
/// memory_into() as well.
template <class Gradients, class... Extra> constexpr bool check_memory_backward_arguments() {
  using Place = Into<TensorView<float, 2>>;
  return check_block_backward_arguments<Gradients, std::conditional_t<MemoryIntoArgument<Extra>, Place, Extra>...>();
}

/// The sentences for a project_memory() that records.
template <class Own, class Tape, class... Memory> constexpr bool check_memory_recording() {
  constexpr bool fits = std::is_same_v<std::remove_cvref_t<Tape>, Own>, named = std::is_same_v<Tape, Own&>;
  static_assert(fits,
                "mha: the tape of project_memory() is of another scalar or backend than the layer, whose memory_tape() "
                "makes one (see mha/layer/memory_tape.hpp)");
  static_assert(named || !fits,
                "mha: project_memory() records on a tape that has a name and is not const: auto tape = "
                "layer.memory_tape() (see mha/layer/memory_tape.hpp)");
  return check_recorded_rows<Memory...>() && fits && named;
}

/// Whether it is the ScoreGradient of a score that the backend computes none of.
template <class B, class E> constexpr bool is_summed_nowhere() {
  if constexpr (ScoreGradientArgument<E>)
    return sums_no_score<B, std::remove_pointer_t<decltype(std::remove_cvref_t<E>::to)>>();
  return false;
}
/// The sentences for gradients of scores on a backend that does not compute them.
template <class B, class... Extra> constexpr void check_score_destinations() {
  static_assert(has_score_gradients<B> || !((BiasGradientArgument<Extra> || ScoreGradientArgument<Extra>) || ...),
                "mha: a backend on a device computes no gradients of a layer's bias or scores unless it has "
                "'sums_scores': leave out BiasGradient and ScoreGradient (see mha/backend/backward.hpp)");
  static_assert((!is_summed_nowhere<B, Extra>() && ...),
                "mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a call's score is given a span of the "
                "device's own: leave out its ScoreGradient, or make the type of gradient a template parameter (see "
                "mha/policy/score.hpp)");
}

/// In the list of a call's arguments a tape and a memory count as masks that hide nothing.
template <class E>
using BesideTape = std::conditional_t<CallTapeArgument<E> || MemoryArgument<E> || LayerStepArgument<E>, Full, E>;

/// Whether what follows x has no memory but as the first, of rows as the second too.
template <class... Extra>
constexpr bool is_memory_first = (0 + ... + int(MemoryArgument<Extra>)) <= (has_value_rows<Extra...> ? 2 : 1);
/// Whether what follows x has no step of a cache but as the first.
template <class First, class... Rest> constexpr bool is_step_first = !(LayerStepArgument<Rest> || ...);

/// The sentences for a call that records: layer(x, tape, …).
template <class T, class B, class X, class... Extra> constexpr bool check_recording() {
  check_memory_of<B, std::remove_cvref_t<X>>();
  constexpr bool rows = check_recorded_rows<X, Extra...>();
  constexpr bool sources = !((is_key_values<std::remove_cvref_t<Extra>> && !std::is_lvalue_reference_v<Extra>) || ...);
  static_assert(sources,
                "mha: a call on a tape reads what a temporary project_memory() returned, which would be gone before "
                "the backward pass reads it again: name it first (see mha/layer/tape.hpp)");
  constexpr bool step_first = is_step_first<Extra...>;
  static_assert(step_first,
                "mha: the step of a cache comes next to x, in the place of a memory: layer(x, step[i], tape) (see "
                "mha/layer/cache_step.hpp)");
  constexpr bool memory_first = is_memory_first<Extra...>;
  static_assert(memory_first,
                "mha: what a call on a tape attends to comes next to x: layer(x, memory, tape), or keys and values, "
                "layer(x, keys, values, tape) (see mha/layer/recording_layer.hpp)");
  constexpr bool held = !((SourceArgument<Extra> && DropsKeys<std::remove_cvref_t<Extra>>) || ...);
  static_assert(held,
                "mha: a tape records no call over a source that drops keys, such as RingKv: give the call a source "
                "that keeps all (see mha/layer/recording_layer.hpp)");
  if constexpr (rows && sources && memory_first && held && step_first &&
                check_call_recording<LayerTape<T, B>, Extra...>()) {
    check_layer_arguments<BesideTape<Extra>...>();
    return true;
  }
  return false;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
