// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "backend/backward.hpp"
#include "backward_arguments.hpp"
#include "call.hpp"
#include "call_backend.hpp"
#include "checked_call.hpp"
#include "core/check.hpp"
#include "core/overlap.hpp"
#include "device_score_gradients.hpp"
#include "score_gradients.hpp"
#include "staged.hpp"
#include "tape.hpp"

/// The backward pass of an attention call, from what it is checked for to the gradients.
namespace mha::inline MHA_NAMESPACE::detail {

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

/// The sentences for a backward pass of T on a backend, of a call with these arguments.
template <class B, class T, class... Extra> constexpr bool check_backward() {
  using A = Accumulator<T>;
  constexpr bool differentiates = DifferentiatesAttention<B, T>;
  static_assert(differentiates,
                "mha: this backend has no backward pass: it has no member attend_backward(call, workspace) "
                "(see mha/backend/backward.hpp)");
  using Wanted = WantedOf<Extra...>;
  constexpr bool has_derivative =
      check_differentiated_score<A, decltype(collect_scores(std::declval<const Extra&>()...)), Wanted::parameters>();
  check_backward_arguments<Extra...>();
  check_drops<B, Extra...>();
  static_assert(has_score_gradients<B> || !(Wanted::bias || Wanted::parameters),
                "mha: a backend on a device computes no gradients of a bias or of a score's own numbers unless it "
                "has 'sums_scores': leave out BiasGradient and ScoreGradient, and call attention_backward_into(), "
                "which trains no score unasked (see mha/backend/backward.hpp)");
  return differentiates && has_derivative;
}

/// The backward pass of `forward`, a call over any source. `keys` and `values` are arrays for those that it reads;
/// ready(call) is the call over these, filled, once all is checked.
template <class T, class B, class Forward, class Out, class DOut, class Ready, class... Extra>
void differentiate(const AttentionGradientsTo<T>& to, CallScope<B>& scope, Forward& forward, const DOut& d_out,
                   const Out& out, const TensorView<const T, 4>& keys, const TensorView<const T, 4>& values,
                   const AttentionTape<T, B>& tape, const Ready& ready, Extra&... extra) {
  using A = Accumulator<T>;
  using Wanted = WantedOf<Extra...>;
  constexpr const char* name = "attention_backward";
  const B& backend = scope.backend;
  forward.value_dim = values.dim();
  using Head = decltype(at_head(forward.score, Index{}, Index{}));
  AttendBackwardCall<T, decltype(Forward::kv), decltype(Forward::mask), decltype(Forward::score), Wanted> call{
      forward,  read_heads(out), read_heads(d_out), given_d_log_sum_exp<A>(extra...), tape.level(), tape.sum(),
      to.query, to.key,          to.value};
  require_backward(name, call, keys, values, (LogSumExpGradientArgument<Extra> || ...));
  tape.require_of(backend, name, forward);
  require_supported(backend, name);
  require_backward_fits(backend, name, forward.shape);
  require_tensors_reachable(backend, name, call, keys, values);
  with_sink_gradient(
      [&](const auto& sink, bool) {
        require_data(name, "SinkGradient", sink);
        require_equal(name, "heads", "q", forward.shape.heads, "SinkGradient", sink.extent[0]);
        require_own_memory(name, "SinkGradient", sink, {"heads"});
        require_reachable(backend, name, "SinkGradient", sink);
        call.sink = scope.frame.template take<LongSum<A>>(static_cast<std::size_t>(forward.shape.heads));
        if constexpr (computes_on_host<B>) std::fill_n(call.sink, forward.shape.heads, LongSum<A>(0));
      },
      extra...);
  require_destinations_apart(name, call, keys, values, extra...);
  const auto given_score = collect_scores(extra...);
  const auto& score_here = on_host(given_score);
  check_bias_gradient<A, std::remove_cvref_t<decltype(score_here)>, Extra...>();
  const auto score =
      call_score_gradients<A, Wanted, Head>(name, scope.items, score_here, forward.shape, scope.frame, extra...);
  auto there = call.with(ready(staged(backend, forward, scope.frame, scope.workspace)));
  there.key_offsets = there.forward.kv.offsets.data;
  there.score = score.cleared();
  run_backward(backend, there, scope.workspace);
  if constexpr (sums_scores<B>)
    score.store(backend, scope.workspace, extra...);
  else
    score.store(extra...);
  with_sink_gradient(
      [&](const auto& sink, bool adds) {
        scope.items(SinkItems<LongSum<A>, ScalarOf<decltype(sink)>>{sink.extent[0], 1, 1, call.sink, sink, adds});
      },
      extra...);
}

}  // namespace mha::inline MHA_NAMESPACE::detail
