// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "../backend/backend.hpp"
#include "../call.hpp"
#include "../core/check.hpp"
#include "../core/workspace.hpp"
#include "../policy/mask.hpp"
#include "../policy/role.hpp"
#include "../policy/score.hpp"
#include "../positions.hpp"

/// What the calls of a layer are given, and what is refused.
namespace mha::inline MHA_NAMESPACE::detail {

template <class E>
concept LayerArgument = RefusedArgument<E> || Mask<E> || Score<E> || WorkspaceArgument<E> || IntoArgument<E> ||
    LogSumExpArgument<E> || RaggedArgument<E> || OriginArgument<E> || PositionsArgument<E> || BackendArgument<E> ||
    DropoutSeedArgument<E> || ResidualArgument<E>;

/// A whole KvCache, or the step of all its layers, where it is no LayerArgument.
template <class E>
concept WholeCache = requires {
  typename std::remove_cvref_t<E>::Step;
}
|| requires(E step) { step.commit(); };

/// The sentences for what a layer may be given after its tensors.
template <class... Extra> constexpr void check_layer_arguments() {
  check_functors<Extra...>();
  constexpr bool whole_cache = ((WholeCache<Extra> && !LayerArgument<Extra>) || ...);
  static_assert(!whole_cache,
                "mha: a layer call takes its own part of a cache's step: auto step = cache.step(ids, rows), "
                "layer(x, step[i]) for layer i, step.commit(); of a cache of one layer, layer.prefill(x, cache) and "
                "layer.step(x, cache) (see mha/layer/kv_cache.hpp)");
  static_assert(
      whole_cache || has_call_tape<Extra...> ||
          ((LayerArgument<Extra> || has_fault<Fault::almost, Extra>() || has_fault<Fault::ambiguous, Extra>()) && ...),
      "mha: after its tensors a layer call takes masks, scores, Ragged, Origin, Positions, mha::residual(r), "
      "mha::into(y), LogSumExp, a DropoutSeed, a Workspace and a backend; the scale is Config::scale, a Sink, a "
      "Dropout and a Rotary are named in the layer's type, and layer.tape() makes the tape of layer(x, tape) (see "
      "mha/call.hpp)");
  static_assert(
      !has_call_tape<Extra...>,
      "mha: step(), prefill() and attention_weights() do not record: give the tape to layer(x, tape), or of a "
      "cache to auto step = cache.step(rows), layer(x, step[0], tape), step.commit() (see "
      "mha/layer/tape.hpp)");
  static_assert(at_most_one<DropoutSeedArgument<Extra>...>,
                "mha: two seeds of one Dropout: keep one (see mha/policy/dropout.hpp)");
  static_assert(at_most_one<IntoArgument<Extra>...> && at_most_one<OriginArgument<Extra>...> &&
                    at_most_one<LogSumExpArgument<Extra>...> && at_most_one<RaggedArgument<Extra>...> &&
                    at_most_one<WorkspaceArgument<Extra>...> && at_most_one<BackendArgument<Extra>...> &&
                    at_most_one<ResidualArgument<Extra>...> && at_most_one<PositionsArgument<Extra>...>,
                "mha: Ragged, Origin, Positions, mha::residual(r), mha::into(y), LogSumExp, a Workspace and a backend "
                "may be given once each (see mha/call.hpp)");
}
template <class... Extra> constexpr void check_layer_weights_arguments() {
  check_layer_arguments<Extra...>();
  static_assert(!((IntoArgument<Extra> || LogSumExpArgument<Extra> || ResidualArgument<Extra>) || ...),
                "mha: attention_weights returns the weights and writes nothing else: no mha::residual(r), no "
                "mha::into(y), no LogSumExp (see mha/call.hpp)");
}
template <class... Extra> constexpr void check_project_arguments() {
  static_assert(
      ((RaggedArgument<Extra> || OriginArgument<Extra> || WorkspaceArgument<Extra> || BackendArgument<Extra>)&&...),
      "mha: project_memory takes Ragged, Origin, a Workspace and a backend; masks and scores belong to the call that "
      "attends; a layer's part of a cache's step, step[i], or the tape of layer.memory_tape() comes next to the memory "
      "(see mha/layer/call.hpp)");
}
template <class... Extra> constexpr void check_project_step_arguments() {
  static_assert(((WorkspaceArgument<Extra> || BackendArgument<Extra>)&&...),
                "mha: project_memory into a cache takes a Workspace and a backend: the step knows the rows and "
                "positions of its sequences, and records no tape (see mha/layer/projecting_layer.hpp)");
}

}  // namespace mha::inline MHA_NAMESPACE::detail
