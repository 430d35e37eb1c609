// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "attention.hpp"
#include "backward_arguments.hpp"
#include "backward_pass.hpp"
#include "cache/gathered_rows.hpp"
#include "cache/held_mask.hpp"
#include "cache/kv_source.hpp"
#include "call.hpp"
#include "call_backend.hpp"
#include "checked_call.hpp"
#include "core/scalar.hpp"
#include "core/tensor.hpp"
#include "score_gradients.hpp"
#include "staged.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What attention_backward() returns, each like the tensor that it is the gradient of.
///
/// Shapes    query (B, Lq, Hq, D)  key (B, Lk, Hkv, D)  value (B, Lk, Hkv, Dv)  sink (Hq), empty without a Sink
///           score: the call's trained score with the gradients of its numbers, of several a Chain, else NoScore
template <class Query, class Key, class Value, class Sink, class S = NoScore> struct AttentionGradients {
  Query query;
  Key key;
  Value value;
  Sink sink;
  S score;
};

namespace detail {

/// A result like this input, and its extents.
template <class B, class Owner> auto gradient_like(const Owner& owner) {
  using Result = ResultOn<B, Owner>;
  const auto v = ViewTraits<Owner>::view(owner);
  return [&]<std::size_t... Axis>(std::index_sequence<Axis...>) { return Result::make(v.extent[Axis]...); }
  (std::make_index_sequence<std::size_t{ViewTraits<Owner>::rank}>());
}

}  // namespace detail

/// The gradients of attention into memory of the caller's: {dq, dk, dv}, each a tensor, add_to() of one, or {}: none.
///
/// Formula   d⟨d_out, out⟩ for out = softmax(score(scale · q kᵀ) where the mask allows) v
/// Shapes    d_out, out (B, Lq, Hq, Dv)  dq (B, Lq, Hq, D)  dk (B, Lk, Hkv, D)  dv (B, Lk, Hkv, Dv), any strides, and
///           with fewer axes as attention_into() takes them. What is written overlaps nothing that is read
/// Then      out and tape of attention(q, k, v, …, mha::record(tape)), and all that the call was given, again: masks,
///           scores, a Sink, Dropout, DropoutSeed, Scale, Origin, Ragged; LogSumExpGradient, SinkGradient,
///           BiasGradient, ScoreGradient; a Workspace, and the tape's backend if it is not a default one
/// Numerics  sums in Accumulator<T>, rounded once; a hidden pair contributes exactly nothing, whatever stands there;
///           a fully masked row nothing at all
/// Cost      2·Hq·(visible pairs)·(3·D + 2·Dv) FLOP; Lq × Lk is never stored
/// Memory    the backend's, for all but a ScoreGradient, which the host has: a call on a device with one waits for it
/// Errors    before a write, ShapeError if the sizes do not agree, nothing is on the tape, or its call had other sizes,
///           another scale, Origin, Ragged or dropout, or if a destination overlaps q, k, v, out, d_out, the
///           tape, a Sink, an AdditiveBias, another one or itself; masks, scores and values are not compared
/// Source    Dao et al. 2022 (FlashAttention), appendix B.2
template <AttentionTensor DOut, AttentionTensor Q, AttentionTensor K, AttentionTensor V, AttentionTensor Out, class T,
          class B, class... Extra>
void attention_backward_into(const AttentionGradientsTo<std::type_identity_t<T>>& to, const DOut& d_out, const Q& q,
                             const K& k, const V& v, const Out& out, const AttentionTape<T, B>& tape,
                             Extra&&... extra) {
  using A = Accumulator<T>;
  constexpr const char* name = "attention_backward";
  constexpr bool one_scalar = std::is_same_v<T, ScalarOf<Q>> && std::is_same_v<T, ScalarOf<K>> &&
                              std::is_same_v<T, ScalarOf<V>> && std::is_same_v<T, ScalarOf<Out>> &&
                              std::is_same_v<T, ScalarOf<DOut>>;
  static_assert(one_scalar,
                "mha: attention_backward needs d_out, q, k, v, out and the tape of one scalar type "
                "(see mha/attention_backward.hpp)");
  if constexpr (one_scalar && detail::check_backward<B, T, Extra...>()) {
    detail::check_memory_of<B, DOut, Q, K, V, Out>();
    const auto& backend = detail::call_backend<B>(extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto queries = detail::read_heads(q), keys = detail::read_heads(k), values = detail::read_heads(v);
    const auto options = detail::collect_options<A>(extra...);
    auto forward = detail::checked_call<T, detail::memory_of<B>>(
        name, queries, detail::kv_of(name, queries, keys, keys, options.ragged), detail::collect_masks(extra...),
        detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...), options, scope.frame);
    Tensor<T, 4> key_copy, value_copy;
    const auto ready = [&](auto call) {
      call.kv.key = detail::unit_rows(keys, scope.frame, key_copy, scope.items);
      call.kv.value = detail::unit_rows(values, scope.frame, value_copy, scope.items);
      return call;
    };
    detail::differentiate(to, scope, forward, d_out, out, keys, values, tape, ready, extra...);
  }
}

/// The same of a call over a source, mha::attention(q, source, …, mha::record(tape)): the source has the keys and
/// values that it had then.
///
/// Shapes    dk (B, Lk, Hkv, D), dv (B, Lk, Hkv, Dv) where each sequence has Lk keys and the call no Ragged; else
///           (ΣLk, Hkv, D) and (ΣLk, Hkv, Dv), one sequence after another: position k of sequence b is in row k + the
///           sum of the lengths of the sequences before b
/// Numerics  the gradient of a position that the source has dropped is 0; what it stores in another scalar is rounded
///           to the call's
/// Memory    its keys and values are copied once: D + Dv numbers for each key and head
/// Errors    as above; that a destination overlaps the source's rows is not checked
template <AttentionTensor DOut, AttentionTensor Q, KvSource Kv, AttentionTensor Out, class T, class B, class... Extra>
void attention_backward_into(const AttentionGradientsTo<std::type_identity_t<T>>& to, const DOut& d_out, const Q& q,
                             const Kv& kv, const Out& out, const AttentionTape<T, B>& tape, Extra&&... extra) {
  using A = Accumulator<T>;
  constexpr const char* name = "attention_backward";
  constexpr bool one_scalar =
      std::is_same_v<T, ScalarOf<Q>> && std::is_same_v<T, ScalarOf<Out>> && std::is_same_v<T, ScalarOf<DOut>>;
  static_assert(one_scalar,
                "mha: attention_backward needs d_out, q, out and the tape of one scalar type "
                "(see mha/attention_backward.hpp)");
  if constexpr (one_scalar && detail::check_source_scalars<T, T, typename Kv::Scalar>() &&
                detail::check_backward<B, T, Extra...>()) {
    detail::check_memory_of<B, DOut, Q, Out>();
    const auto& backend = detail::call_backend<B>(extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto options = detail::collect_options<A>(extra...);
    detail::check_source<detail::memory_of<B>>(name, kv, options.ragged);
    auto forward = detail::checked_call<T, detail::memory_of<B>>(
        {name, "q", "the source", "the source"}, detail::read_heads(q), kv, detail::collect_masks(extra...),
        detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...), options, scope.frame);
    detail::require_source_reachable(backend, name, kv);
    const auto axes = detail::gathered_axes(name, kv, options.ragged.has_value());
    auto rows = detail::gathered_rows<T>(name, kv, axes, scope.frame);
    if (axes.side_by_side) {
      Index* const offsets = scope.frame.template take_host<Index>(static_cast<std::size_t>(forward.shape.batch) + 1);
      detail::list_key_offsets(kv, offsets);
      rows.offsets = {offsets, forward.shape.batch + 1};
    }
    const auto ready = [&](const auto& call) {
      const auto there = detail::gather(scope, call.kv, call.shape, rows);
      return call.with(there.source(), detail::mask_of_held(call.mask, call.kv), call.score);
    };
    detail::differentiate<T>(to, scope, forward, d_out, out, rows.key, rows.value, tape, ready, extra...);
  }
}

namespace detail {

/// The gradients that `backward(to, more…)` writes of a call with these arguments, those of keys and values into these.
template <class B, class A, class Query, class Key, class Value, class Backward, class... Extra>
auto returned_gradients(Index heads, Query query, Key key, Value value, const Backward& backward,
                        const Extra&... extra) {
  const auto of_score = [&] {
    const auto score = collect_scores(extra...);
    constexpr bool unasked = trains_unasked<ScoreOnHost<std::remove_const_t<decltype(score)>>>();
    if constexpr (Arithmetic<A> && unasked && !(ScoreGradientArgument<Extra> || ...))
      return trained(on_host(score));
    else
      return NoScore{};
  };
  AttentionGradients<Query, Key, Value, TensorOf<B, A, 1>, decltype(of_score())> g{
      std::move(query), std::move(key), std::move(value), {}, of_score()};
  const auto run = [&](const auto&... more) {
    if constexpr (std::is_same_v<decltype(g.score), NoScore>)
      backward(g, more...);
    else
      backward(g, more..., ScoreGradient(g.score));
  };
  if constexpr (count_role < Role::sink, Extra... >> 0) {
    g.sink = TensorOf<B, A, 1>(heads);
    run(SinkGradient(g.sink));
  } else {
    run();
  }
  return g;
}

}  // namespace detail

/// attention_backward_into() with the gradients returned: {query, key, value, sink, score}, row-major Eigen matrices
/// for Eigen inputs, the backend's tensors otherwise; `sink` has the sums of a Sink's logits, `score` the type of the
/// call's trained score and the gradients of its numbers. The cap of a SoftCap is computed for a ScoreGradient, or
/// beside another trained score, alone.
template <AttentionTensor DOut, AttentionTensor Q, AttentionTensor K, AttentionTensor V, AttentionTensor Out, class T,
          class B, class... Extra>
[[nodiscard]] auto attention_backward(const DOut& d_out, const Q& q, const K& k, const V& v, const Out& out,
                                      const AttentionTape<T, B>& tape, Extra&&... extra) {
  [[maybe_unused]] const auto held = detail::entered(detail::call_backend<B>(extra...));
  return detail::returned_gradients<B, Accumulator<T>>(
      detail::read_heads(q).heads(), detail::gradient_like<B>(q), detail::gradient_like<B>(k),
      detail::gradient_like<B>(v),
      [&](auto& g, const auto&... more) {
        attention_backward_into({g.query, g.key, g.value}, d_out, q, k, v, out, tape, extra..., more...);
      },
      extra...);
}
/// The same of a call over a source: `key` and `value` are tensors of four axes.
///
/// Shapes    key (B, Lk, Hkv, D) or (1, ΣLk, Hkv, D), value likewise, as attention_backward_into() of a source has them
template <AttentionTensor DOut, AttentionTensor Q, KvSource Kv, AttentionTensor Out, class T, class B, class... Extra>
[[nodiscard]] auto attention_backward(const DOut& d_out, const Q& q, const Kv& kv, const Out& out,
                                      const AttentionTape<T, B>& tape, Extra&&... extra) {
  [[maybe_unused]] const auto held = detail::entered(detail::call_backend<B>(extra...));
  const auto options = detail::collect_options<Accumulator<T>>(extra...);
  detail::check_source<detail::memory_of<B>>("attention_backward", kv, options.ragged);
  const auto axes = detail::gathered_axes("attention_backward", kv, options.ragged.has_value());
  using Rows = detail::TensorOf<B, T, 4>;
  const Index heads = static_cast<Index>(kv.heads());
  return detail::returned_gradients<B, Accumulator<T>>(
      detail::read_heads(q).heads(), detail::gradient_like<B>(q),
      Rows(axes.batch, axes.length, heads, static_cast<Index>(kv.dim())),
      Rows(axes.batch, axes.length, heads, static_cast<Index>(kv.value_dim())),
      [&](auto& g, const auto&... more) {
        attention_backward_into({g.query, g.key, g.value}, d_out, q, kv, out, tape, extra..., more...);
      },
      extra...);
}

// Refused in one sentence.
template <class T, class B, class... Extra>
detail::Refused attention_backward(detail::Anything, detail::Anything, detail::Anything, detail::Anything,
                                   detail::Anything, const AttentionTape<T, B>&, const Extra&...) {
  return detail::no_tensors<T, B, Extra...>();
}

}  // namespace mha::inline MHA_NAMESPACE
