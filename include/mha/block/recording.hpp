// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "../backend/backend.hpp"
#include "../call.hpp"
#include "../core/add_to.hpp"
#include "../core/check.hpp"
#include "../core/overlap.hpp"
#include "../core/view.hpp"
#include "gradients.hpp"
#include "rows.hpp"

/// What calls on a tape and their backward passes are given, and what is refused.
namespace mha::inline MHA_NAMESPACE::detail {

/// Whether what a call reads is still there in its backward pass.
template <class E> constexpr bool outlasts_call() {
  if constexpr (Sequence<E>)
    return view_lasts<E>();
  else
    return true;
}

/// The sentences for a call that records, linear(x, tape, …), but for what such a call is given without a tape.
template <class Tape, class... Extra> constexpr bool check_call_recording() {
  constexpr bool one = (0 + ... + int(CallTapeArgument<Extra>)) == 1;
  static_assert(one, "mha: a call is recorded on one tape (see mha/block/recording.hpp)");
  constexpr bool fits = ((!CallTapeArgument<Extra> || std::is_same_v<std::remove_cvref_t<Extra>, Tape>)&&...);
  static_assert(fits,
                "mha: the tape is of another scalar, backend or kind than what is called, whose tape() makes one "
                "(see mha/block/recording.hpp)");
  constexpr bool named = ((!CallTapeArgument<Extra> || std::is_same_v<Extra, Tape&>)&&...);
  static_assert(named || !fits,
                "mha: a call records on a tape that has a name and is not const: auto tape = layer.tape() "
                "(see mha/block/recording.hpp)");
  return one && fits && named;
}
/// The sentence for an x, and a memory, that the backward pass reads again.
template <class... X> constexpr bool check_recorded_rows() {
  constexpr bool lasts = (outlasts_call<X>() && ...);
  static_assert(lasts,
                "mha: a call on a tape reads a temporary x or memory, which would be gone before the backward pass "
                "reads it again: name it first (see mha/block/recording.hpp)");
  return lasts;
}

/// The tape among a call's arguments.
template <class Tape, class E, class... Rest> Tape& given_tape(E& first, Rest&... rest) {
  if constexpr (CallTapeArgument<E>)
    return first;
  else
    return given_tape<Tape>(rest...);
}

/// Gradients that backward() adds to, among what it is given after the tape.
template <class E>
concept GradientsArgument = requires {
  typename std::remove_cvref_t<E>::Named;
};
/// The sentences for them, one at a time.
template <class Gradients, class... Extra> constexpr bool check_gradients() {
  constexpr bool one = at_most_one<GradientsArgument<Extra>...>;
  static_assert(one, "mha: backward() adds to one object of gradients (see mha/block/recording.hpp)");
  constexpr bool same = ((!GradientsArgument<Extra> || std::is_same_v<std::remove_cvref_t<Extra>, Gradients>)&&...);
  static_assert(same,
                "mha: backward() takes gradients that gradients() of what is called has made: these are of another "
                "scalar, backend, score or kind (see mha/block/recording.hpp)");
  constexpr bool named = ((!GradientsArgument<Extra> || std::is_same_v<Extra, Gradients&>)&&...);
  static_assert(named || !same,
                "mha: backward() adds to gradients that have a name and are not const: auto gradients = "
                "layer.gradients() (see mha/block/recording.hpp)");
  return one && same && named;
}
/// The gradients among what backward() is given; null if there are none, so that none of weights are computed.
template <class Gradients> Gradients* find_gradients() { return nullptr; }
template <class Gradients, class E, class... Rest> Gradients* find_gradients(E& first, Rest&... rest) {
  if constexpr (GradientsArgument<E>)
    return &first;
  else
    return find_gradients<Gradients>(rest...);
}

/// The sentences for what backward() may be given after the tape.
template <class Gradients, class... Extra> constexpr bool check_block_backward_arguments() {
  static_assert(
      ((GradientsArgument<Extra> || IntoArgument<Extra> || AddToArgument<Extra> || WorkspaceArgument<Extra> ||
        BackendArgument<Extra>)&&...),
      "mha: after the tape backward() takes gradients, mha::into(dx) or mha::add_to(dx), a Workspace and a backend; a "
      "residual has the gradient dy (see mha/block/recording.hpp)");
  static_assert(at_most_one<(IntoArgument<Extra> || AddToArgument<Extra>)...> &&
                    at_most_one<WorkspaceArgument<Extra>...> && at_most_one<BackendArgument<Extra>...>,
                "mha: one of mha::into(dx) and mha::add_to(dx), a Workspace and a backend may be given once each (see "
                "mha/block/recording.hpp)");
  return check_gradients<Gradients, Extra...>();
}

/// Whether backward() of what has this scalar and tape takes these.
template <class T, class Tape, class DY, class OfTape>
constexpr bool takes_backward = SequenceOf<DY, T>&& std::is_convertible_v<const OfTape&, const Tape&>;
/// The sentences for what it does not take, one at a time.
template <class T, class Tape, class DY, class OfTape> Refused refuse_backward() {
  constexpr bool rows = SequenceOf<DY, T>, same_tape = std::is_convertible_v<const OfTape&, const Tape&>;
  static_assert(rows,
                "mha: backward() takes dy with 2 or 3 axes and the scalar of what is called: an Eigen matrix (an "
                "expression is computed first: .eval()), an mha::Tensor or a view of a pointer, mha::view(p, L, E) "
                "(see mha/block/recording.hpp)");
  static_assert(!rows || same_tape,
                "mha: backward() takes a tape that tape() of what is called has made: this one is of another scalar, "
                "backend or kind (see mha/block/recording.hpp)");
  return {};
}

/// The tape has a call of these weights.
inline void require_recorded(bool recorded, bool same_weights, const char* what) {
  require(recorded, "backward: nothing was recorded on the tape: call it with x and the tape first");
  require(same_weights, "backward: the tape was recorded with other weights: by another ", what,
          ", or before this one's weights changed");
}

/// A gradient of rows has the batch and length of those rows, and a width.
template <class T, class V>
void require_gradient_rows(const char* of, const TensorView<const T, 3>& rows, const char* name, const V& gradient,
                           Index width) {
  require_data("backward", name, gradient);
  require_equal("backward", "batch", of, rows.extent[0], name, gradient.extent[0]);
  require_equal("backward", "length", of, rows.extent[1], name, gradient.extent[1]);
  require(gradient.extent[2] == width, "backward: ", name, " has width ", gradient.extent[2], ", expected ", width);
}

/// Memory that a backward pass is given or adds to is where the backend reaches it.
template <class B, class T, class A>
void require_backward_reachable(const B& backend, const TensorView<const T, 3>& dy, const TensorView<T, 3>& dx,
                                const TensorView<const A, 1>& gradients) {
  require_reachable(backend, "backward", "dy", dy);
  require_reachable(backend, "backward", "dx", dx);
  require_reachable(backend, "backward", "the memory of the gradients", gradients);
}

/// What a backward pass on the backend is given and writes has the rows of x. It is where the backend reaches it, and
/// so are the gradients and what the tape keeps.
template <class B, class T, class X, class A, class... Kept>
void require_backward_rows(const B& backend, const TensorView<const X, 3>& x, const TensorView<const T, 3>& dy,
                           Index outputs, const TensorView<T, 3>& dx, Index inputs,
                           const TensorView<const A, 1>& gradients, const Kept&... kept) {
  require_gradient_rows("x", x, "dy", dy, outputs);
  require_gradient_rows("x", x, "dx", dx, inputs);
  require_supported(backend, "backward");
  (kept.require_reachable(backend, "backward"), ...);
  require_reachable(backend, "backward", "x", x);
  require_backward_reachable(backend, dy, dx, gradients);
}

/// A result, such as dx, and the gradients lie in memory that nothing else of the call reads or writes, and each
/// element of the result in memory of its own.
template <class T, class A>
void require_apart(const char* name, const TensorView<T, 3>& to, const TensorView<const T, 3>& x,
                   const TensorView<const T, 3>& dy, const TensorView<const A, 1>& gradients) {
  require_own_memory("backward", name, to, axes_of_rows);
  require(x.data == nullptr || !share_elements(to, x), "backward: ", name, " overlaps x");
  require(!share_elements(to, dy), "backward: ", name, " overlaps dy");
  require(!may_overlap(to, gradients), "backward: ", name, " overlaps the gradients");
  require(!may_overlap(dy, gradients), "backward: dy overlaps the gradients");
  require(!may_overlap(x, gradients), "backward: x overlaps the gradients");
}

/// What a backward pass writes overlaps no parameter; `of` follows the name of one.
template <class Views>
void require_apart_from_parameters(const char* name, const Footprint& to, const Views& parameters,
                                   const char* of = "") {
  const auto look = [&](const char* part, const auto& v) {
    require(!share_bytes(to, footprint(v)), "backward: ", name, " overlaps the parameter '", part, "'", of);
  };
  PartsOf<Views>::each(look, parameters);
}

}  // namespace mha::inline MHA_NAMESPACE::detail

namespace mha::inline MHA_NAMESPACE {

/// Refused: the tape of a layer or a block is an argument as it is.
template <detail::CallTapeArgument Tape> detail::Refused record(Tape&&) {
  static_assert(
      detail::valid<Tape>,
      "mha: mha::record(tape) is for the tape of attention(): a layer, a Linear, a FeedForward and a norm take "
      "their tape as it is, layer(x, tape) (see mha/block/recording.hpp)");
  return {};
}

}  // namespace mha::inline MHA_NAMESPACE
