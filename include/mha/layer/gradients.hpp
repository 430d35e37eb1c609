// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../block/gradients.hpp"
#include "../block/parts.hpp"
#include "../core/check.hpp"
#include "../core/view.hpp"
#include "../policy/score.hpp"
#include "../policy/score/relative_bias.hpp"
#include "../policy/trained_score.hpp"
#include "parameter_views.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Named views of a layer's gradients: those of its parameters, and of a Sink's logits.
///
/// Shapes    those of ParameterViews; flat() has the parameters. sink (Hq), null data without a Sink
template <class A> struct LayerGradientViews : ParameterViews<A> { TensorView<A, 1> sink; };

namespace detail {

template <class A> struct PartsOf<LayerGradientViews<A>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    PartsOf<ParameterViews<A>>::each(f, v...);
    f("sink", v.sink...);
  }
};

/// The elements of an owner's vector.
template <class A> std::span<A> as_span(const TensorView<A, 1>& v) {
  return {v.data, static_cast<std::size_t>(v.extent[0])};
}
/// Numbers as a step reads them.
template <class A> std::span<const A> to_read(const std::span<A>& numbers) { return numbers; }

/// The gradients of a layer's RelativeBias have its buckets.
template <class S, class G> void require_buckets(const char* call, const S& own, const G& given) {
  if constexpr (is_chain<S> && is_chain<G>) {
    require_buckets(call, own.first, given.first);
    require_buckets(call, own.second, given.second);
  } else if constexpr (std::is_same_v<S, RelativeBias> && std::is_same_v<G, RelativeBias>) {
    const RelativeBuckets &expected = own.buckets(), &found = given.buckets();
    const auto same = [call](const char* of, Index is, Index should) {
      require(is == should, call, ": the gradients are of another RelativeBias: its ", of, " is ", is, ", expected ",
              should);
    };
    same("count", found.count, expected.count);
    same("max_distance", found.max_distance, expected.max_distance);
    same("bidirectional", found.bidirectional, expected.bidirectional);
  }
}
/// The gradients of a layer's score are of that score, as far as sizes tell.
///
/// Errors    ShapeError that names the size and both values
template <class S, class G> void require_score_gradients(const char* call, const S& own, const G& given) {
  require_buckets(call, own, given);
  for_each_numbers(own, given, [call](const auto& numbers, const auto& gradients) {
    require(numbers.size() == gradients.size(), call, ": the gradients are of other sizes: their score has ",
            gradients.size(), " numbers, expected ", numbers.size());
  });
}
/// The gradients have as many logits of a Sink.
template <class A> void require_sink_gradients(std::size_t logits, const TensorView<A, 1>& given) {
  require(logits == as_span(given).size(), "for_each: the gradients are of other sizes: their sink has ",
          given.extent[0], " numbers, expected ", logits);
}

}  // namespace detail

/// The gradients of what a layer has learned, with the names that it has there: what layer.backward() adds to.
///
///   auto gradients = layer.gradients();  // all 0
///   layer.backward(dy, tape, gradients);
///   layer.update([&](auto& p) {
///     p.for_each(gradients, [&](auto numbers, auto d) {
///       for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= rate * d[i];
///     });
///   });
///   gradients.clear();
///
/// Scalars   A is the accumulator of the layer's scalar
/// Shapes    those of the parameters; flat() has their order, whether the layer owns its weights or not; score: what is
///           trained of the layer's score, as attention_backward() returns it
template <class A, class S = NoScore> class LayerGradients : public BlockGradients<A, LayerGradientViews<A>> {
  using Base = BlockGradients<A, LayerGradientViews<A>>;

 public:
  [[no_unique_address]] S score;

  /// As BlockGradients, and with a score whose numbers are 0.
  template <class Layout>
  LayerGradients(std::int64_t size, const Layout& layout, S zero = {}) : Base(size, layout), score(std::move(zero)) {}

  /// f(numbers) for all of them, in the order of p.for_each(): a span of those of the weights, then, where there are
  /// any, of those of the score and of the Sink.
  template <class F> void for_each(F&& f) {
    Base::for_each(f);
    detail::for_each_numbers(score, std::as_const(score), [&f](const auto& numbers, const auto&) { f(numbers); });
    if (this->sink.data != nullptr) f(detail::as_span(this->sink));
  }
  template <class F> void for_each(F&& f) const {
    Base::for_each(f);
    detail::for_each_numbers(score, score, [&f](const auto& numbers, const auto&) { f(numbers); });
    if (this->sink.data != nullptr) f(detail::to_read(detail::as_span(this->sink)));
  }
  /// step(numbers, the same of the other) likewise: to add up the gradients of several threads or processes.
  ///
  /// Errors    ShapeError for gradients of other sizes, before the first step
  template <class Step> void for_each(const LayerGradients& other, Step&& step) {
    detail::require_score_gradients("for_each", score, other.score);
    detail::require_sink_gradients(detail::as_span(this->sink).size(), other.sink);
    Base::for_each(other, step);
    detail::for_each_numbers(score, other.score, step);
    if (this->sink.data != nullptr) step(detail::as_span(this->sink), detail::to_read(detail::as_span(other.sink)));
  }

  /// All ← 0, as a new step begins.
  void clear() {
    Base::clear();
    detail::clear_numbers(score);
  }
};

namespace detail {

/// A backend that sums the gradients of a score itself has none of one that accumulates in the host's spans alone.
template <class B, class S> constexpr bool sums_no_score() {
  return sums_scores<B> && !all_accumulate_on_device<WantedScoreGradients<false, true>, S>();
}

/// Whether the numbers of a layer's score S are trained on the backend.
template <class B, class T, class S>
constexpr bool trains_on = has_score_gradients<B>&& trains_score<T, S> && !sums_no_score<B, S>();
template <class B, class T, class S> using TrainedOn = std::conditional_t<trains_on<B, T, S>, Trained<S>, NoScore>;

/// The sentences for a layer with the score S.
template <class B, class T, class S> constexpr bool check_trains_score() {
  constexpr bool trains = trains_score<T, S>;
  static_assert(has_score_gradients<B> || !trains,
                "mha: a backend on a device computes no gradients of the numbers of a layer's score unless it has "
                "'sums_scores': train on Cpu, or give the score to each call, layer(x, tape, score), where none of its "
                "numbers is trained (see mha/backend/backward.hpp)");
  static_assert(!trains || !sums_no_score<B, S>(),
                "mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a layer's score is given a span of the "
                "device's own: make the type of gradient a template parameter, or 'static constexpr bool trainable = "
                "false' (see mha/policy/score.hpp)");
  return !trains || trains_on<B, T, S>;
}

}  // namespace detail

/// What layer.update() writes of a layer with a score that is trained, or a Sink: `score` and `sink` are the layer's.
template <class T, class S, class Sink> struct TrainedParameters : ParameterViews<T> {
  S& score;
  Sink& sink;

  /// step(numbers, their gradients), as ParameterViews has it, for the score and the Sink too.
  template <class Gradients, class Step> void for_each(const Gradients& gradients, Step&& step) const {
    constexpr bool weights_alone = detail::HasNamesOf<Gradients, ParameterViews> && !requires { gradients.score; };
    static_assert(!weights_alone,
                  "mha: for_each() of a layer with a trained score or a Sink is given weights alone, such as "
                  "parameters(): give it gradients, or take p.flat(), p.score and p.sink by themselves (see "
                  "mha/layer/gradients.hpp)");
    if constexpr (!weights_alone) {
      if constexpr (requires { gradients.score; }) detail::require_score_gradients("for_each", score, gradients.score);
      if constexpr (requires { sink.numbers(); }) detail::require_sink_gradients(sink.numbers().size(), gradients.sink);
      ParameterViews<T>::for_each(gradients, step);
      if constexpr (requires { gradients.score; }) detail::for_each_numbers(score, gradients.score, step);
      if constexpr (requires { sink.numbers(); })
        step(sink.numbers(), detail::to_read(detail::as_span(gradients.sink)));
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE
