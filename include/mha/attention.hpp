// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "backend/backward.hpp"
#include "backend/default.hpp"
#include "call.hpp"
#include "call_backend.hpp"
#include "checked_call.hpp"
#include "core/check.hpp"
#include "core/overlap.hpp"
#include "core/tensor.hpp"
#include "merge.hpp"  // for who calls attention part by part
#include "policy/sink.hpp"
#include "staged.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

/// q, k, v of attention(): one head (L, D), one sequence (L, H, D), sequences of a ragged batch one after another (ΣL,
/// H, D), or a batch (B, L, H, D).
template <class T>
concept AttentionTensor = ViewableOfRank<T, 2, 3, 4>;

namespace detail {

/// Any argument, by a conversion: a function that takes it is called where no other can be, not even a user's that
/// argument-dependent lookup finds it beside and that takes the argument without a conversion of its own.
struct Anything {
  template <class T> constexpr Anything(const T&) {}
};

/// The sentence for what has no elements in memory, or no axes.
template <class... Extra> constexpr Refused no_tensors() {
  static_assert(
      valid<Extra...>,
      "mha: attention takes tensors with 2 to 4 axes: an mha::Tensor, a view of a pointer or of a vector's data, "
      "mha::view(p, L, H, D), or an Eigen matrix; an Eigen expression is computed first, (2 * q).eval() "
      "(see mha/attention.hpp)");
  return {};
}

template <class... Extra> constexpr void check_no_into() {
  static_assert(!(IntoArgument<Extra> || ...),
                "mha: mha::into(y) is for layers and blocks: mha::attention_into(y, q, k, v) writes the result of "
                "attention to y (see mha/attention.hpp)");
}

/// The sentences for an `out` that is written for nothing, or cannot be.
template <class Out> constexpr bool check_out() {
  constexpr bool lasts = view_lasts<Out>();
  constexpr bool writable = !std::is_const_v<std::remove_pointer_t<decltype(ViewOf<Out>::data)>>;
  static_assert(lasts,
                "mha: attention_into() of a temporary out: the result would be gone: name out first (see "
                "mha/attention.hpp)");
  static_assert(writable,
                "mha: attention_into() of a constant out: the result cannot be written to it (see "
                "mha/attention.hpp)");
  return lasts && writable;
}

/// The sentences for the scalars of a call over a source.
template <class T, class Out, class Stored> constexpr bool check_source_scalars() {
  constexpr bool one_scalar = std::is_same_v<T, Out>, one_accumulator = meets_rows_of<T, Stored>;
  static_assert(one_scalar, "mha: attention needs q and out of one scalar type (see mha/attention.hpp)");
  static_assert(one_accumulator,
                "mha: a source stores keys of the call's scalar or of another with the same accumulator: float, half, "
                "bfloat16 and scaled_int8 go together, double goes with itself (see mha/cache/kv_source.hpp)");
  return one_scalar && one_accumulator;
}

/// Memory for the result of queries of these axes.
template <class B, class Q> auto attention_result(const Q& q, Index value_dim) {
  using Result = ResultOn<B, Q>;
  const auto queries = read_heads(q);
  require_data("attention", "q", queries);
  if constexpr (ViewTraits<Q>::rank == 2)
    return Result::make(queries.length(), value_dim);
  else if constexpr (ViewTraits<Q>::rank == 3)
    return Result::make(queries.length(), queries.heads(), value_dim);
  else
    return Result::make(queries.batch(), queries.length(), queries.heads(), value_dim);
}

/// Computes a checked call, and leaves what its backward pass needs on the tape among the call's arguments.
template <class B, class Call, class... Extra> void compute(CallScope<B>& scope, Call& call, Extra&... extra) {
  const auto run_it = [&](auto records) {
    run<decltype(records)::value>(scope.backend, staged(scope.backend, call, scope.frame, scope.workspace),
                                  scope.workspace);
  };
  if constexpr ((TapeArgument<Extra> || ...)) {
    using T = typename Call::Scalar;
    constexpr bool differentiates = DifferentiatesAttention<B, T>;
    static_assert(differentiates,
                  "mha: this backend has no backward pass, so it records no tape: it has no member "
                  "attend_backward(call, workspace) (see mha/backend/backward.hpp)");
    if constexpr (differentiates) {
      AttentionTape<T, B>& tape = call_tape<T, B>(extra...);
      call.states = tape.begin(scope.backend, "attention", call);
      run_it(std::true_type{});
      tape.end();
    }
  } else {
    run_it(std::false_type{});
  }
}

}  // namespace detail

/// Scaled dot-product attention into memory of the caller's.
///
/// Formula   out = softmax(score(scale · q kᵀ) where the mask allows) v
/// Shapes    q (B, Lq, Hq, D)  k (B, Lk, Hkv, D)  v (B, Lk, Hkv, Dv)  out (B, Lq, Hq, Dv), any strides;
///           one head each: (Lq, D)  (Lk, D)  (Lk, Dv)  (Lq, Dv); without the batch axis: (L, H, D), ragged (ΣL, H, D).
///           Query head h reads key/value head h / (Hq / Hkv).
/// Then      in any order: masks (they intersect), scores (they chain as written), a Sink, Dropout and a DropoutSeed,
///           without which nothing is dropped, Scale (default 1/√D), Origin, Ragged, LogSumExp, mha::record(tape) for
///           attention_backward(), a Workspace, a backend: Cpu if neither a value nor a template argument says another
/// Units     logits in natural-log scale; mask true = visible
/// Numerics  accumulates in Accumulator<T>; fully masked row → 0; a hidden key contributes nothing, not even NaN
/// Cost      2·Hq·(visible pairs)·(D + Dv) FLOP, pairs summed over the batch; Lq × Lk is never stored. With a Workspace
///           that has grown, Cpu allocates nothing
/// Memory    Cpu copies keys and values that lie 2 KiB apart and more to up to 256 MiB of the workspace, if it can grow
///           so far, where a key/value head has at least 10 tiles of queries, which read each key at least 5 times on
///           average under the mask, a sequence has at most 4 keys for each query of each head that reads them, and
///           the source drops none; keys in one array that all sequences read are copied once, and all queries count
/// Errors    ShapeError if the sizes do not agree, Hq % Hkv != 0, data is null, the scale is not finite in
///           Accumulator<T>, or out or a LogSumExp overlaps itself, the other, q, k, v, the Sink, or, where a tape is
///           given, an AdditiveBias
/// Source    Vaswani et al. 2017, §3.2.1, eq. 1; Dao et al. 2022
template <class OnBackend = void, AttentionTensor Out, AttentionTensor Q, AttentionTensor K, AttentionTensor V,
          class... Extra>
void attention_into(Out&& out, const Q& q, const K& k, const V& v, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  using T = ScalarOf<Q>;
  constexpr bool one_scalar =
      std::is_same_v<T, ScalarOf<K>> && std::is_same_v<T, ScalarOf<V>> && std::is_same_v<T, ScalarOf<Out>>;
  static_assert(one_scalar,
                "mha: attention needs q, k, v and out of one scalar type; keys and values in 16 bits under a float q "
                "are a source, mha::ContiguousKv{k, v} (see mha/attention.hpp)");
  if constexpr (one_scalar && detail::check_out<Out>()) {
    detail::check_call_arguments<Extra...>();
    detail::check_no_into<Extra...>();
    detail::check_drops<B, Extra...>();
    detail::check_memory_of<B, Out, Q, K, V>();
    const auto& backend = detail::call_backend<B>(extra...);
    detail::CallScope<B> scope(backend, extra...);
    const TensorView<T, 4> to = detail::four_heads(ViewTraits<std::remove_cvref_t<Out>>::view(out));
    const auto queries = detail::read_heads(q), keys = detail::read_heads(k), values = detail::read_heads(v);
    const auto options = detail::collect_options<Accumulator<T>>(extra...);
    auto call = detail::attend_call<T, detail::memory_of<B>>(
        "attention", to, queries, detail::kv_of("attention", queries, keys, values, options.ragged),
        detail::collect_masks(extra...), detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...),
        options, scope.frame);
    detail::require_supported(backend, "attention");
    detail::require_reachable(backend, "attention", "q", call.q);
    detail::require_reachable(backend, "attention", "k", keys);
    detail::require_reachable(backend, "attention", "v", values);
    detail::require_reachable(backend, "attention", "out", to);
    detail::require_reachable(backend, "attention", "log-sum-exp", call.log_sum_exp);
    const detail::NamedArray written[] = {{"out", detail::footprint(to)},
                                          {"log-sum-exp", detail::footprint(call.log_sum_exp)}};
    const detail::NamedArray read[] = {{"q", detail::footprint(queries)},
                                       {"k", detail::footprint(keys)},
                                       {"v", detail::footprint(values)},
                                       {"the Sink", detail::footprint(call.sink.data, call.sink.size)}};
    detail::require_apart("attention", written, read);
    if constexpr ((detail::TapeArgument<Extra> || ...))
      for (const auto& array : written) detail::require_recorded_apart("attention", array, {}, call.score);
    Tensor<T, 4> key_copy, value_copy;
    call.kv.key = detail::unit_rows(keys, scope.frame, key_copy, scope.items);
    call.kv.value = detail::unit_rows(values, scope.frame, value_copy, scope.items);
    detail::compute(scope, call, extra...);
  }
}

/// The same with keys and values from a source: a paged cache, a ring, a type of the user's own.
///
/// Shapes    q (B, Lq, Hq, D), out (B, Lq, Hq, Dv) and their shorter forms as above; ragged: (ΣLq, H, D) with
///           Ragged{query offsets}. B, Hkv, D, Dv and the keys' lengths are the source's
/// Then      the same; Origin, if not given, is keys(b) − Lq(b), so that each sequence's last query meets its last key
/// Numerics  keys may be stored in another scalar of the same accumulator, such as bfloat16 under float. Positions that
///           the source has dropped are hidden. On Cpu and Systolic a row's bits do not depend on how the source lays
///           out the keys that the row sees
/// Errors    ShapeError if the sizes do not agree, out or a LogSumExp overlaps itself, the other, q or the Sink, or as
///           the source's check(). That neither overlaps the source's rows is not checked
template <class OnBackend = void, AttentionTensor Out, AttentionTensor Q, KvSource Kv, class... Extra>
void attention_into(Out&& out, const Q& q, const Kv& kv, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  using T = ScalarOf<Q>;
  if constexpr (detail::check_out<Out>() && detail::check_source_scalars<T, ScalarOf<Out>, typename Kv::Scalar>()) {
    detail::check_call_arguments<Extra...>();
    detail::check_no_into<Extra...>();
    detail::check_drops<B, Extra...>();
    detail::check_memory_of<B, Out, Q>();
    const auto& backend = detail::call_backend<B>(extra...);
    detail::CallScope<B> scope(backend, extra...);
    const TensorView<T, 4> to = detail::four_heads(ViewTraits<std::remove_cvref_t<Out>>::view(out));
    const auto options = detail::collect_options<Accumulator<T>>(extra...);
    detail::check_source<detail::memory_of<B>>("attention", kv, options.ragged);
    auto call = detail::attend_call<T, detail::memory_of<B>>(
        {"attention", "q", "the source", "the source"}, to, detail::read_heads(q), kv, detail::collect_masks(extra...),
        detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...), options, scope.frame);
    detail::require_supported(backend, "attention");
    detail::require_reachable(backend, "attention", "q", call.q);
    detail::require_source_reachable(backend, "attention", kv);
    detail::require_reachable(backend, "attention", "out", to);
    detail::require_reachable(backend, "attention", "log-sum-exp", call.log_sum_exp);
    const detail::NamedArray written[] = {{"out", detail::footprint(to)},
                                          {"log-sum-exp", detail::footprint(call.log_sum_exp)}};
    const detail::NamedArray read[] = {{"q", detail::footprint(call.q)},
                                       {"the Sink", detail::footprint(call.sink.data, call.sink.size)}};
    detail::require_apart("attention", written, read);
    if constexpr ((detail::TapeArgument<Extra> || ...))
      for (const auto& array : written) detail::require_recorded_apart("attention", array, {}, call.score);
    detail::compute(scope, call, extra...);
  }
}

/// attention_into() with the result returned: a row-major Eigen matrix for Eigen inputs, the backend's tensor
/// otherwise.
template <class OnBackend = void, AttentionTensor Q, AttentionTensor K, AttentionTensor V, class... Extra>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  [[maybe_unused]] const auto held = detail::entered(detail::call_backend<B>(extra...));
  const auto values = detail::read_heads(v);
  detail::require_data("attention", "v", values);
  auto out = detail::attention_result<B>(q, values.dim());
  attention_into<B>(out, q, k, v, extra...);
  return out;
}
/// The same with keys and values from a source.
///
/// Shapes    q (B, Lq, Hq, D) and its shorter forms  →  the same with Dv, the source's, in place of D
template <class OnBackend = void, AttentionTensor Q, KvSource Kv, class... Extra>
[[nodiscard]] auto attention(const Q& q, const Kv& kv, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  [[maybe_unused]] const auto held = detail::entered(detail::call_backend<B>(extra...));
  auto out = detail::attention_result<B>(q, static_cast<Index>(kv.value_dim()));
  attention_into<B>(out, q, kv, extra...);
  return out;
}

/// The softmax itself, which attention() never stores: B·Hq·Lq·Lk numbers, in the backend's memory. Hidden pairs are 0.
///
/// Shapes    q (B, Lq, Hq, D)  k (B, Lk, Hkv, D), or as attention takes them  →  (B, Hq, Lq, Lk); of a ragged batch
///           Lq and Lk are the longest sequences', and what lies beyond a shorter one is 0
/// Then      masks, scores, a Sink, Dropout, DropoutSeed, Scale, Origin, Ragged, a Workspace, a backend
/// Numerics  with a DropoutSeed the dropped weights are 0 and the others multiplied, as attention() uses them
/// Errors    ShapeError as for attention_into
template <class OnBackend = void, AttentionTensor Q, AttentionTensor K, class... Extra>
[[nodiscard]] auto attention_weights(const Q& q, const K& k, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  using T = ScalarOf<Q>;
  static_assert(std::is_same_v<T, ScalarOf<K>>,
                "mha: attention_weights needs q and k of one scalar type (see mha/attention.hpp)");
  detail::check_memory_of<B, Q, K>();
  detail::check_weights_arguments<Extra...>();
  detail::check_no_into<Extra...>();
  detail::check_drops<B, Extra...>();
  const auto& backend = detail::call_backend<B>(extra...);
  detail::CallScope<B> scope(backend, extra...);
  const auto queries = detail::read_heads(q), keys = detail::read_heads(k);
  const auto options = detail::collect_options<Accumulator<T>>(extra...);
  auto call = detail::checked_call<T, detail::memory_of<B>>(
      "attention_weights", queries, detail::kv_of("attention_weights", queries, keys, keys, options.ragged),
      detail::collect_masks(extra...), detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...),
      options, scope.frame);
  detail::require_supported(backend, "attention_weights");
  detail::require_reachable(backend, "attention_weights", "q", call.q);
  detail::require_reachable(backend, "attention_weights", "k", keys);
  Tensor<T, 4> key_copy;
  call.kv.key = detail::unit_rows(keys, scope.frame, key_copy, scope.items);
  call.kv.value = call.kv.key;
  return detail::run_weights(backend, detail::staged(backend, call, scope.frame, scope.workspace), scope.workspace);
}
/// The same over the keys of a source.
///
/// Shapes    q (B, Lq, Hq, D) and its shorter forms  →  (B, Hq, Lq, Lk), Lk the source's longest sequence; what lies
///           beyond a shorter one, and positions that the source has dropped, are 0
/// Then      as above; Origin, if not given, is keys(b) − Lq(b)
/// Errors    ShapeError as for attention_into over a source
template <class OnBackend = void, AttentionTensor Q, KvSource Kv, class... Extra>
[[nodiscard]] auto attention_weights(const Q& q, const Kv& kv, Extra&&... extra) {
  using B = detail::CallBackend<OnBackend, Cpu, Extra...>;
  using T = ScalarOf<Q>;
  detail::check_source_scalars<T, T, typename Kv::Scalar>();
  detail::check_memory_of<B, Q>();
  detail::check_weights_arguments<Extra...>();
  detail::check_no_into<Extra...>();
  detail::check_drops<B, Extra...>();
  const auto& backend = detail::call_backend<B>(extra...);
  detail::CallScope<B> scope(backend, extra...);
  const auto options = detail::collect_options<Accumulator<T>>(extra...);
  detail::check_source<detail::memory_of<B>>("attention_weights", kv, options.ragged);
  auto call = detail::checked_call<T, detail::memory_of<B>>(
      {"attention_weights", "q", "the source", "the source"}, detail::read_heads(q), kv,
      detail::collect_masks(extra...), detail::collect_scores(extra...), detail::collect_sink(NoSink{}, extra...),
      options, scope.frame);
  detail::require_supported(backend, "attention_weights");
  detail::require_reachable(backend, "attention_weights", "q", call.q);
  detail::require_source_reachable(backend, "attention_weights", kv);
  return detail::run_weights(backend, detail::staged(backend, call, scope.frame, scope.workspace), scope.workspace);
}

// Refused in one sentence.
template <class OnBackend = void, class... Extra>
void attention_into(detail::Anything, detail::Anything, detail::Anything, detail::Anything, const Extra&...) {
  detail::no_tensors<OnBackend, Extra...>();
}
template <class OnBackend = void, class... Extra>
detail::Refused attention(detail::Anything, detail::Anything, detail::Anything, const Extra&...) {
  return detail::no_tensors<OnBackend, Extra...>();
}
template <class OnBackend = void, class... Extra>
detail::Refused attention_weights(detail::Anything, detail::Anything, const Extra&...) {
  return detail::no_tensors<OnBackend, Extra...>();
}

}  // namespace mha::inline MHA_NAMESPACE
