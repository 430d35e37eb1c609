// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>

#include "backend/backend.hpp"
#include "backend/default.hpp"
#include "core/borrowed.hpp"
#include "core/check.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"
#include "policy/dropout.hpp"
#include "policy/mask.hpp"
#include "policy/mask/positional.hpp"
#include "policy/role.hpp"
#include "policy/score.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What dot products are multiplied by in this call; 1/√D if not given.
struct Scale {
  double value;
};

/// The absolute position of each sequence's first query; Lk − Lq if not given, so that the last query meets the last
/// key. One for all, Origin{3}, or one each, Origin{positions}: key j stands at position j.
///
/// Shapes    positions (B), on the host
struct Origin {
  Index position = 0;
  Borrowed<Index> positions{};
  bool per_sequence = false;

  constexpr explicit Origin(Index all) : position(all) {}
  constexpr explicit Origin(Borrowed<Index> each) : positions(each), per_sequence(true) {}
};

/// A ragged batch: sequences of different lengths, one after another in rows (ΣL, …), sequence b in rows offsets[b] …
/// offsets[b + 1] − 1. Each attends within itself; with key offsets too, sequence b's queries attend sequence b's keys.
///
/// Shapes    offsets (B + 1), from 0 to ΣL, not decreasing, on the host
struct Ragged {
  Borrowed<Index> query_offsets;
  Borrowed<Index> key_offsets{};  ///< if empty, those of keys that were projected with some, else the queries'

  constexpr const Borrowed<Index>& keys() const { return key_offsets.size > 0 ? key_offsets : query_offsets; }
};

namespace detail {

/// One number for each row: (B, Hq, Lq), (Hq, Lq) without a batch, (Lq) of one head.
template <class A> constexpr TensorView<A, 3> row_axes(const TensorView<A, 3>& v) { return v; }
template <class A> constexpr TensorView<A, 3> row_axes(const TensorView<A, 2>& v) {
  return {v.data, {1, v.extent[0], v.extent[1]}, {0, v.stride[0], v.stride[1]}};
}
template <class A> constexpr TensorView<A, 3> row_axes(const TensorView<A, 1>& v) {
  return {v.data, {1, 1, v.extent[0]}, {0, 0, v.stride[0]}};
}

}  // namespace detail

/// Also write the natural log-sum-exp of every row, −∞ for a fully masked one; the logit of a Sink is not part of it.
///
/// Shapes    (B, Hq, Lq); (Hq, Lq) for a call without a batch, (Lq) for one head; ragged: (Hq, ΣLq)
template <class A> struct LogSumExp {
  static_assert(!std::is_const_v<A>, "mha: LogSumExp writes its tensor, and this one is const (see mha/call.hpp)");
  TensorView<A, 3> to;

  template <ViewableOfRank<1, 2, 3> Owner>
  requires(!std::same_as<std::remove_cvref_t<Owner>, LogSumExp>) constexpr explicit LogSumExp(Owner&& owner)
      : to(detail::row_axes(view(std::forward<Owner>(owner)))) {}
};
template <Viewable Owner> LogSumExp(Owner&&) -> LogSumExp<ElementOf<Owner>>;

template <class T, class B = Cpu> class AttentionTape;
/// See record() in tape.hpp.
template <class T, class B> struct Record { AttentionTape<T, B>* tape; };

/// Where a layer writes its result: layer(x, mha::into(y)), layer(x, mha::into(y.topRows(4))).
template <class View> struct Into { View to; };
template <Viewable Owner> [[nodiscard]] constexpr auto into(Owner&& owner) {
  constexpr bool lasts = detail::view_lasts<Owner>();
  constexpr bool writable = !std::is_const_v<std::remove_pointer_t<decltype(detail::ViewOf<Owner>::data)>>;
  static_assert(lasts, "mha: into(y) of a temporary y: the result would be gone: name y first (see mha/call.hpp)");
  static_assert(writable, "mha: into(y) of a constant y: the result cannot be written to it (see mha/call.hpp)");
  using Result = Into<TensorView<ScalarOf<Owner>, detail::ViewOf<Owner>::rank>>;
  if constexpr (lasts && writable)
    return Result{view(owner)};
  else
    return Result{};
}

namespace detail {

template <class T> constexpr bool is_log_sum_exp = false;
template <class A> constexpr bool is_log_sum_exp<LogSumExp<A>> = true;
template <class T> constexpr bool is_record = false;
template <class T, class B> constexpr bool is_record<Record<T, B>> = true;
template <class T> constexpr bool is_into = false;
template <class V> constexpr bool is_into<Into<V>> = true;

template <class E>
concept ResidualArgument = std::remove_cvref_t<E>::is_residual;  // block/arguments.hpp
template <class E>
concept ScaleArgument = std::same_as<std::remove_cvref_t<E>, Scale>;
template <class E>
concept OriginArgument = std::same_as<std::remove_cvref_t<E>, Origin>;
template <class E>
concept RaggedArgument = std::same_as<std::remove_cvref_t<E>, Ragged>;
template <class E>
concept LogSumExpArgument = is_log_sum_exp<std::remove_cvref_t<E>>;
template <class E>
concept TapeArgument = is_record<std::remove_cvref_t<E>>;
template <class E>
concept DropoutSeedArgument = std::same_as<std::remove_cvref_t<E>, DropoutSeed>;
template <class E>
concept IntoArgument = is_into<std::remove_cvref_t<E>>;
/// What a call of a layer, a Linear, a FeedForward or a norm records itself on for its backward pass.
template <class E>
concept CallTapeArgument = requires {
  requires std::remove_cvref_t<E>::is_call_tape;
};
/// Whether there is one among a call's arguments.
template <class... Extra> constexpr bool has_call_tape = (CallTapeArgument<Extra> || ...);
constexpr bool is_call_role(Role r) {
  return r == Role::mask || r == Role::score || r == Role::sink || r == Role::dropout || r == Role::ambiguous;
}
template <class E>
concept PolicyArgument = is_call_role(role_of<E>());

/// The sentences for Dropout and DropoutSeed among a call's arguments.
template <class... Extra> constexpr void check_dropout() {
  static_assert(((DropoutPolicy<std::remove_cvref_t<Extra>> || !plays<std::remove_cvref_t<Extra>, Role::dropout>)&&...),
                "mha: a dropout is mha::Dropout{.p = 0.1f}; a functor of yours cannot be one "
                "(see mha/policy/dropout.hpp)");
  static_assert(count_role<Role::dropout, Extra...> <= 1 && at_most_one<DropoutSeedArgument<Extra>...>,
                "mha: two dropouts, or two seeds of one: keep one (see mha/policy/dropout.hpp)");
  static_assert(!(DropoutSeedArgument<Extra> || ...) || count_role<Role::dropout, Extra...> > 0,
                "mha: a DropoutSeed without a Dropout: give mha::Dropout{.p = 0.1f} too (see mha/policy/dropout.hpp)");
}
/// The sentence for a backend that would not drop what a call asks for.
template <class B, class... Extra> constexpr void check_drops() {
  static_assert(drops_weights<B> || !(DropoutSeedArgument<Extra> || ...),
                "mha: this backend drops no weights: call it without a DropoutSeed, or compute on Cpu or Reference "
                "(see mha/policy/dropout.hpp)");
}

/// The sentences for what attention() may be given after its tensors; check_no_into() refuses into(y).
template <class... Extra> constexpr void check_call_arguments() {
  check_functors<Extra...>();
  static_assert(
      ((PolicyArgument<Extra> || WorkspaceArgument<Extra> || ScaleArgument<Extra> || OriginArgument<Extra> ||
        LogSumExpArgument<Extra> || RaggedArgument<Extra> || BackendArgument<Extra> || TapeArgument<Extra> ||
        DropoutSeedArgument<Extra> || IntoArgument<Extra> || has_fault<Fault::almost, Extra>()) &&
       ...),
      "mha: after the tensors attention takes masks, scores, a Sink, Dropout, DropoutSeed, Scale, Origin, Ragged, "
      "LogSumExp, mha::record(tape), a Workspace and a backend (see mha/call.hpp)");
  static_assert(at_most_one<ScaleArgument<Extra>...> && at_most_one<OriginArgument<Extra>...> &&
                    at_most_one<LogSumExpArgument<Extra>...> && at_most_one<WorkspaceArgument<Extra>...> &&
                    at_most_one<RaggedArgument<Extra>...> && at_most_one<BackendArgument<Extra>...> &&
                    at_most_one<TapeArgument<Extra>...> && count_role<Role::sink, Extra...> <= 1,
                "mha: Scale, Origin, Ragged, mha::record(tape), LogSumExp, a Sink, a Workspace and a backend may be "
                "given once each (see mha/call.hpp)");
  check_dropout<Extra...>();
}

/// The sentences for what attention_weights() may be given: nothing that would be left unwritten.
template <class... Extra> constexpr void check_weights_arguments() {
  check_call_arguments<Extra...>();
  static_assert(!(LogSumExpArgument<Extra> || ...),
                "mha: attention_weights writes no log-sum-exp: ask attention() for it (see mha/call.hpp)");
  static_assert(!(TapeArgument<Extra> || ...),
                "mha: attention_weights records no tape: ask attention() for it (see mha/tape.hpp)");
}

/// Both masks as one; Full is left out.
template <class A, class B> constexpr auto intersect(const A& a, const B& b) {
  if constexpr (std::same_as<A, Full>)
    return b;
  else if constexpr (std::same_as<B, Full>)
    return a;
  else
    return And<A, B>{a, b};
}

/// All masks of a call as one.
constexpr Full collect_masks() { return {}; }
template <class E, class... Rest> constexpr auto collect_masks(const E& first, const Rest&... rest) {
  if constexpr (Mask<E>)
    return intersect(first, collect_masks(rest...));
  else
    return collect_masks(rest...);
}

/// All scores of a call as one, in the order written.
constexpr NoScore collect_scores() { return {}; }
template <class E, class... Rest> constexpr auto collect_scores(const E& first, const Rest&... rest) {
  if constexpr (Score<E>)
    return chain(first, collect_scores(rest...));
  else
    return collect_scores(rest...);
}

/// The plain values of a call.
template <class A> struct CallOptions {
  std::optional<double> scale;
  std::optional<Origin> origin;
  std::optional<Ragged> ragged;
  std::optional<TensorView<A, 3>> log_sum_exp;
  double dropout = 0;
  std::optional<DropoutSeed> dropout_seed;
  Index planned_keys = 0;  ///< of each sequence, for a call that is repeated as the keys grow; 0: those there are
  const CallShape* whole = nullptr;  ///< the call of which this one is a piece: masks and scores are those of it
};

template <class A, class... Extra> CallOptions<A> collect_options(const Extra&... extra) {
  CallOptions<A> options;
  [[maybe_unused]] const auto take = [&](const auto& e) {
    using Given = std::remove_cvref_t<decltype(e)>;
    if constexpr (ScaleArgument<Given>)
      options.scale = e.value;
    else if constexpr (OriginArgument<Given>)
      options.origin = e;
    else if constexpr (RaggedArgument<Given>)
      options.ragged = e;
    else if constexpr (DropoutSeedArgument<Given>)
      options.dropout_seed = e;
    else if constexpr (DropoutPolicy<Given>)
      options.dropout = probability(e);
    else if constexpr (LogSumExpArgument<Given>) {
      static_assert(std::same_as<Given, LogSumExp<A>> || std::same_as<Given, LogSumExp<const A>>,
                    "mha: LogSumExp has the accumulator's scalar: float for half, bfloat16 and float, else the scalar "
                    "itself (see mha/call.hpp)");
      if constexpr (std::same_as<Given, LogSumExp<A>>) options.log_sum_exp = e.to;
    }
  };
  (take(extra), ...);
  return options;
}

/// The call's sink, or the fallback.
template <class S> constexpr S collect_sink(const S& own) { return own; }
template <class S, class E, class... Rest>
constexpr auto collect_sink(const S& own, const E& first, const Rest&... rest) {
  if constexpr (role_of<E>() == Role::sink)
    return first;
  else
    return collect_sink(own, rest...);
}

/// The tape of a call that has one.
template <class T, class B, class E, class... Rest>
AttentionTape<T, B>& call_tape(const E& first, const Rest&... rest) {
  if constexpr (TapeArgument<E>) {
    static_assert(std::same_as<E, Record<T, B>>,
                  "mha: the tape is of another scalar or backend than the call: AttentionTape<T, B> has the scalar of "
                  "q and the call's backend (see mha/tape.hpp)");
    if constexpr (std::same_as<E, Record<T, B>>)
      return *first.tape;
    else
      std::abort();  // never run: the assertion has failed
  } else {
    return call_tape<T, B>(rest...);
  }
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
