// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "attention.hpp"
#include "backend/backward.hpp"
#include "backward_arguments.hpp"
#include "call.hpp"
#include "call_backend.hpp"
#include "checked_call.hpp"
#include "core/check.hpp"
#include "core/math.hpp"
#include "core/overlap.hpp"
#include "core/tensor.hpp"
#include "device_score_gradients.hpp"
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

/// Where attention_backward_into() writes: {dq, dk, dv}, each a tensor, add_to() of one, or {}, which is not computed.
template <class T> struct AttentionGradientsTo { GradientTo<T> query, key, value; };

namespace detail {

/// Two tensors of the same extents on the named axes.
template <class Expected, class Given>
void require_axes(const char* call, const char* name, const Expected& expected, const char* other, const Given& given,
                  int axes = 4) {
  for (int a = 0; a < axes; ++a)
    require_equal(call, axes_of_heads[a], name, expected.extent[a], other, given.extent[a]);
}

/// Checks the tensors of a backward pass against those of its call, a LogSumExpGradient if it has one.
template <class T, class Source, class M, class S, class Wanted>
void require_backward(const char* call, const AttendBackwardCall<T, Source, M, S, Wanted>& c,
                      const TensorView<const T, 4>& k, const TensorView<const T, 4>& v, bool log_sum_exp) {
  const TensorView<const T, 4>& q = c.forward.q;
  require_data(call, "v", v);
  require_head_size(call, "v", v.dim());
  require_axes(call, "k", k, "v", v, 3);
  const auto rows = [&](const char* name, const TensorView<const T, 4>& tensor) {
    require_data(call, name, tensor);
    require_axes(call, "q", q, name, tensor, 3);
    require_equal(call, "head size", "v", v.dim(), name, tensor.dim());
  };
  rows("out", c.out);
  rows("d_out", c.d_out);
  const auto destination = [&](const char* name, const GradientTo<T>& to, const char* of, const auto& tensor) {
    if (!to.given()) return;
    to.require_valid(call, name);
    require_axes(call, of, tensor, name, to.axes());
    to.require_own_memory(call, name);
  };
  destination("the gradient of q", c.query, "q", q);
  destination("the gradient of k", c.key, "k", k);
  destination("the gradient of v", c.value, "v", v);
  if (log_sum_exp) require_log_sum_exp_gradient(call, "q", q, c.d_log_sum_exp);
}

/// What a backward pass reads and writes of one of its arguments.
template <class E> void list_arrays(const char* call, const E& e, NamedArray*& read, NamedArray*& written) {
  if constexpr (SinkGradientArgument<E>) {
    *written++ = {"SinkGradient", footprint(e.to)};
  } else if constexpr (BiasGradientArgument<E>) {
    require_data(call, "BiasGradient", e.to);
    *written++ = {"BiasGradient", footprint(e.to)};
  } else if constexpr (ScoreGradientArgument<E>) {
    *written++ = {"ScoreGradient", footprint(e.to, 1)};
  } else if constexpr (is_chain<E>) {
    list_arrays(call, e.first, read, written);
    list_arrays(call, e.second, read, written);
  } else if constexpr (is_bias<E>) {
    *read++ = {"AdditiveBias", footprint(e.bias)};
  } else if constexpr (role_of<E>() == Role::score) {
    *read++ = {"the score", footprint(&e, 1)};
  }
}
template <class E> constexpr std::size_t count_parts = 1;
template <class A, class B> constexpr std::size_t count_parts<Chain<A, B>> = count_parts<A> + count_parts<B>;

/// What a backward pass writes overlaps nothing.
template <class T, class Source, class M, class S, class Wanted, class... Extra>
void require_destinations_apart(const char* call, const AttendBackwardCall<T, Source, M, S, Wanted>& c,
                                const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                                const Extra&... extra) {
  constexpr std::size_t fixed = 9, destinations = 3, parts = (std::size_t{0} + ... + count_parts<Extra>);
  const auto& q = c.forward.q;
  const std::ptrdiff_t rows = std::ptrdiff_t{q.batch()} * q.length() * q.heads();
  NamedArray read[fixed + parts] = {{"q", footprint(q)},
                                    {"k", footprint(k)},
                                    {"v", footprint(v)},
                                    {"out", footprint(c.out)},
                                    {"d_out", footprint(c.d_out)},
                                    {"LogSumExpGradient", footprint(c.d_log_sum_exp)},
                                    {"the Sink", footprint(c.forward.sink.data, c.forward.sink.size)},
                                    {"the tape", footprint(c.level, rows)},
                                    {"the tape", footprint(c.sum, rows)}};
  NamedArray written[destinations + parts] = {{"the gradient of q", c.query.footprint()},
                                              {"the gradient of k", c.key.footprint()},
                                              {"the gradient of v", c.value.footprint()}};
  NamedArray *last_read = read + fixed, *last_written = written + destinations;
  (list_arrays(call, extra, last_read, last_written), ...);
  require_apart(call, {written, last_written}, {read, last_read});
}

/// The gradient of the sink from its sums, and from what it is added to.
template <class Sum, class E> struct SinkItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  const Sum* sums;
  TensorView<E, 1> to;
  bool adds;
  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index) const {
    E& x = to(static_cast<Index>(row));
    x = static_cast<E>(adds ? static_cast<Sum>(static_cast<Accumulator<E>>(x)) + sums[row] : sums[row]);
  }
};

/// The destination's memory is one that the backend's machine reaches, where that can be told.
template <class B, class T>
void require_gradient_reachable(const B& backend, const char* call, const char* name, const GradientTo<T>& to) {
  if constexpr (!computes_on_host<B>)
    if (to.wanted() && to.axes().size() > 0) backend.require_reachable(call, name, to.data());
}

/// The tensors of a backward pass are where the backend reaches them.
template <class B, class T, class Source, class M, class S, class Wanted>
void require_tensors_reachable(const B& backend, const char* call, const AttendBackwardCall<T, Source, M, S, Wanted>& c,
                               const TensorView<const T, 4>& k, const TensorView<const T, 4>& v) {
  require_reachable(backend, call, "q", c.forward.q);
  require_reachable(backend, call, "k", k);
  require_reachable(backend, call, "v", v);
  require_reachable(backend, call, "out", c.out);
  require_reachable(backend, call, "d_out", c.d_out);
  require_reachable(backend, call, "LogSumExpGradient", c.d_log_sum_exp);
  require_gradient_reachable(backend, call, "the gradient of q", c.query);
  require_gradient_reachable(backend, call, "the gradient of k", c.key);
  require_gradient_reachable(backend, call, "the gradient of v", c.value);
}

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
  constexpr bool differentiates = DifferentiatesAttention<B, T>;
  static_assert(differentiates,
                "mha: this backend has no backward pass: it has no member attend_backward(call, workspace) "
                "(see mha/backend/backward.hpp)");
  using Wanted = detail::WantedOf<Extra...>;
  constexpr bool has_derivative =
      detail::check_differentiated_score<A, decltype(detail::collect_scores(std::declval<const Extra&>()...)),
                                         Wanted::parameters>();
  if constexpr (one_scalar && differentiates && has_derivative) {
    detail::check_backward_arguments<Extra...>();
    detail::check_drops<B, Extra...>();
    detail::check_memory_of<B, DOut, Q, K, V, Out>();
    static_assert(detail::has_score_gradients<B> || !(Wanted::bias || Wanted::parameters),
                  "mha: a backend on a device computes no gradients of a bias or of a score's own numbers unless it "
                  "has 'sums_scores': leave out BiasGradient and ScoreGradient, and call attention_backward_into(), "
                  "which trains no score unasked (see mha/backend/backward.hpp)");
    const auto& backend = detail::call_backend<B>(extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto queries = detail::read_heads(q), keys = detail::read_heads(k), values = detail::read_heads(v);
    const auto options = detail::collect_options<A>(extra...);
    const auto given_score = detail::collect_scores(extra...);
    auto forward = detail::checked_call<T, detail::memory_of<B>>(
        name, queries, detail::kv_of(name, queries, keys, keys, options.ragged), detail::collect_masks(extra...),
        given_score, detail::collect_sink(NoSink{}, extra...), options, scope.frame);
    forward.value_dim = values.dim();
    using F = decltype(forward);
    using Head = decltype(at_head(forward.score, Index{}, Index{}));
    AttendBackwardCall<T, decltype(F::kv), decltype(F::mask), decltype(F::score), Wanted> call{
        forward,
        detail::read_heads(out),
        detail::read_heads(d_out),
        detail::given_d_log_sum_exp<A>(extra...),
        tape.level(),
        tape.sum(),
        to.query,
        to.key,
        to.value};
    detail::require_backward(name, call, keys, values, (detail::LogSumExpGradientArgument<Extra> || ...));
    tape.require_of(backend, name, forward);
    detail::require_supported(backend, name);
    detail::require_backward_fits(backend, name, forward.shape);
    detail::require_tensors_reachable(backend, name, call, keys, values);
    detail::with_sink_gradient(
        [&](const auto& sink, bool) {
          detail::require_data(name, "SinkGradient", sink);
          detail::require_equal(name, "heads", "q", forward.shape.heads, "SinkGradient", sink.extent[0]);
          detail::require_own_memory(name, "SinkGradient", sink, {"heads"});
          detail::require_reachable(backend, name, "SinkGradient", sink);
          call.sink = scope.frame.template take<LongSum<A>>(static_cast<std::size_t>(forward.shape.heads));
          if constexpr (detail::computes_on_host<B>) std::fill_n(call.sink, forward.shape.heads, LongSum<A>(0));
        },
        extra...);
    detail::require_destinations_apart(name, call, keys, values, extra...);
    const auto& score_here = detail::on_host(given_score);
    detail::check_bias_gradient<A, std::remove_cvref_t<decltype(score_here)>, Extra...>();
    const auto score = detail::call_score_gradients<A, Wanted, Head>(name, scope.items, score_here, forward.shape,
                                                                     scope.frame, extra...);
    Tensor<T, 4> key_copy, value_copy;
    call.forward.kv.key = detail::unit_rows(keys, scope.frame, key_copy, scope.items);
    call.forward.kv.value = detail::unit_rows(values, scope.frame, value_copy, scope.items);
    call.score = score.cleared();
    detail::run_backward(backend, detail::staged_backward(backend, call, scope.frame, scope.workspace),
                         scope.workspace);
    if constexpr (detail::sums_scores<B>)
      score.store(backend, scope.workspace, extra...);
    else
      score.store(extra...);
    detail::with_sink_gradient(
        [&](const auto& sink, bool adds) {
          scope.items(
              detail::SinkItems<LongSum<A>, ScalarOf<decltype(sink)>>{sink.extent[0], 1, 1, call.sink, sink, adds});
        },
        extra...);
  }
}

/// attention_backward_into() with the gradients returned: {query, key, value, sink, score}, row-major Eigen matrices
/// for Eigen inputs, the backend's tensors otherwise; `sink` has the sums of a Sink's logits, `score` the type of the
/// call's trained score and the gradients of its numbers. The cap of a SoftCap is computed for a ScoreGradient, or
/// beside another trained score, alone.
template <AttentionTensor DOut, AttentionTensor Q, AttentionTensor K, AttentionTensor V, AttentionTensor Out, class T,
          class B, class... Extra>
[[nodiscard]] auto attention_backward(const DOut& d_out, const Q& q, const K& k, const V& v, const Out& out,
                                      const AttentionTape<T, B>& tape, Extra&&... extra) {
  using A = Accumulator<T>;
  const auto of_score = [&] {
    const auto score = detail::collect_scores(extra...);
    constexpr bool unasked = detail::trains_unasked<detail::ScoreOnHost<std::remove_const_t<decltype(score)>>>();
    if constexpr (Arithmetic<A> && unasked && !(detail::ScoreGradientArgument<Extra> || ...))
      return detail::trained(detail::on_host(score));
    else
      return NoScore{};
  };
  [[maybe_unused]] const auto held = detail::entered(detail::call_backend<B>(extra...));
  AttentionGradients<decltype(detail::gradient_like<B>(q)), decltype(detail::gradient_like<B>(k)),
                     decltype(detail::gradient_like<B>(v)), detail::TensorOf<B, A, 1>, decltype(of_score())>
      g{detail::gradient_like<B>(q), detail::gradient_like<B>(k), detail::gradient_like<B>(v), {}, of_score()};
  const auto run = [&](const auto&... more) {
    if constexpr (std::is_same_v<decltype(g.score), NoScore>)
      attention_backward_into({g.query, g.key, g.value}, d_out, q, k, v, out, tape, extra..., more...);
    else
      attention_backward_into({g.query, g.key, g.value}, d_out, q, k, v, out, tape, extra..., more...,
                              ScoreGradient(g.score));
  };
  if constexpr (detail::count_role < Role::sink, Extra... >> 0) {
    g.sink = detail::TensorOf<B, A, 1>(detail::read_heads(q).heads());
    run(SinkGradient(g.sink));
  } else {
    run();
  }
  return g;
}

// Refused in one sentence.
template <class T, class B, class... Extra>
detail::Refused attention_backward(detail::Anything, detail::Anything, detail::Anything, detail::Anything,
                                   detail::Anything, const AttentionTape<T, B>&, const Extra&...) {
  return detail::no_tensors<T, B, Extra...>();
}

}  // namespace mha::inline MHA_NAMESPACE
