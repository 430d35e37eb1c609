// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "call.hpp"
#include "core/add_to.hpp"
#include "score_gradients.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The gradient of the loss with respect to the log-sum-exps that attention() wrote, for attention_backward().
///
/// Shapes    as LogSumExp
template <class A> struct LogSumExpGradient {
  TensorView<const A, 3> from;

  template <ViewableOfRank<1, 2, 3> Owner>
  requires(!std::same_as<std::remove_cvref_t<Owner>, LogSumExpGradient>) constexpr explicit LogSumExpGradient(
      Owner&& owner)
      : from(detail::row_axes(view(std::forward<Owner>(owner)))) {}
};
template <Viewable Owner> LogSumExpGradient(Owner&&) -> LogSumExpGradient<ScalarOf<Owner>>;

/// Where attention_backward() writes the gradient of the Sink's logits: SinkGradient(logits), or adds it to what they
/// hold: SinkGradient(mha::add_to(logits)).
///
/// Shapes    to (Hq), in the backend's memory
template <class A> struct SinkGradient {
  static_assert(!std::is_const_v<A>,
                "mha: SinkGradient writes its tensor, and this one is const (see mha/attention_backward.hpp)");
  TensorView<A, 1> to;
  bool adds = false;

  template <ViewableOfRank<1> View> constexpr explicit SinkGradient(const AddTo<View>& sum) : to(sum.to), adds(true) {}
  template <ViewableOfRank<1> Owner>
  requires(!std::same_as<std::remove_cvref_t<Owner>, SinkGradient>) constexpr explicit SinkGradient(Owner&& owner)
      : to(view(std::forward<Owner>(owner))) {}
  /// Refused in one sentence.
  template <Viewable Owner>
  requires(!ViewableOfRank<Owner, 1> &&
           !std::same_as<std::remove_cvref_t<Owner>, SinkGradient>) constexpr explicit SinkGradient(Owner&&) {
    refuse<Owner>();
  }
  template <class View>
  requires(!ViewableOfRank<View, 1>) constexpr explicit SinkGradient(const AddTo<View>&) { refuse<View>(); }

 private:
  template <class Given> static constexpr void refuse() {
    static_assert(detail::valid<Given>,
                  "mha: SinkGradient takes a tensor of one axis (Hq): of an Eigen vector mha::view(g.data(), g.size()) "
                  "(see mha/attention_backward.hpp)");
  }
};
template <Viewable Owner> SinkGradient(Owner&&) -> SinkGradient<ElementOf<Owner>>;
template <class View> SinkGradient(AddTo<View>) -> SinkGradient<ElementOf<View>>;

namespace detail {

template <class T> constexpr bool is_log_sum_exp_gradient = false;
template <class A> constexpr bool is_log_sum_exp_gradient<LogSumExpGradient<A>> = true;
template <class T> constexpr bool is_sink_gradient = false;
template <class A> constexpr bool is_sink_gradient<SinkGradient<A>> = true;
template <class T> constexpr bool is_tape = false;
template <class T, class B> constexpr bool is_tape<AttentionTape<T, B>> = true;

template <class E>
concept LogSumExpGradientArgument = is_log_sum_exp_gradient<std::remove_cvref_t<E>>;
template <class E>
concept SinkGradientArgument = is_sink_gradient<std::remove_cvref_t<E>>;

template <class... Extra> constexpr int additive_biases = (0 + ... + count_biases<std::remove_cvref_t<Extra>>);

/// The sentences for what attention_backward() may be given after the tape.
template <class... Extra> constexpr void check_backward_arguments() {
  check_functors<Extra...>();
  static_assert(
      ((PolicyArgument<Extra> || WorkspaceArgument<Extra> || ScaleArgument<Extra> || OriginArgument<Extra> ||
        RaggedArgument<Extra> || BackendArgument<Extra> || DropoutSeedArgument<Extra> ||
        LogSumExpGradientArgument<Extra> || SinkGradientArgument<Extra> || BiasGradientArgument<Extra> ||
        ScoreGradientArgument<Extra> || has_fault<Fault::almost, Extra>()) &&
       ...),
      "mha: after the tape attention_backward takes the masks, scores, Sink, Dropout, DropoutSeed, Scale, Origin "
      "and Ragged of the call, LogSumExpGradient, SinkGradient, BiasGradient, ScoreGradient, a Workspace and a backend "
      "(see mha/attention_backward.hpp)");
  static_assert(at_most_one<ScaleArgument<Extra>...> && at_most_one<OriginArgument<Extra>...> &&
                    at_most_one<WorkspaceArgument<Extra>...> && at_most_one<RaggedArgument<Extra>...> &&
                    at_most_one<BackendArgument<Extra>...> && at_most_one<LogSumExpGradientArgument<Extra>...> &&
                    at_most_one<SinkGradientArgument<Extra>...> && at_most_one<BiasGradientArgument<Extra>...> &&
                    at_most_one<ScoreGradientArgument<Extra>...> && count_role<Role::sink, Extra...> <= 1,
                "mha: Scale, Origin, Ragged, LogSumExpGradient, SinkGradient, BiasGradient, ScoreGradient, a Sink, a "
                "Workspace and a backend may be given once each (see mha/attention_backward.hpp)");
  check_dropout<Extra...>();
  static_assert(!(SinkGradientArgument<Extra> || ...) || count_role<Role::sink, Extra...> == 1,
                "mha: SinkGradient without the Sink that it is the gradient of (see mha/attention_backward.hpp)");
  static_assert(!(BiasGradientArgument<Extra> || ...) || additive_biases<Extra...> == 1,
                "mha: BiasGradient needs one AdditiveBias in the call, that it is the gradient of "
                "(see mha/attention_backward.hpp)");
}

/// The call's LogSumExpGradient, or one without data.
template <class A> constexpr TensorView<const A, 3> given_d_log_sum_exp() { return {}; }
template <class A, class E, class... Rest>
constexpr TensorView<const A, 3> given_d_log_sum_exp(const E& first, const Rest&... rest) {
  if constexpr (LogSumExpGradientArgument<E>) {
    static_assert(std::same_as<E, LogSumExpGradient<A>>,
                  "mha: LogSumExpGradient has the accumulator's scalar: float for half, bfloat16 and float, else the "
                  "scalar itself (see mha/attention_backward.hpp)");
    if constexpr (std::same_as<E, LogSumExpGradient<A>>)
      return first.from;
    else
      return {};
  } else {
    return given_d_log_sum_exp<A>(rest...);
  }
}

/// It has a number for each row of the heads of a call.
template <class T, class A>
void require_log_sum_exp_gradient(const char* call, const char* of, const TensorView<const T, 4>& heads,
                                  const TensorView<const A, 3>& d) {
  require_data(call, "LogSumExpGradient", d);
  require_equal(call, "batch", of, heads.batch(), "LogSumExpGradient", d.extent[0]);
  require_equal(call, "heads", of, heads.heads(), "LogSumExpGradient", d.extent[1]);
  require_equal(call, "length", of, heads.length(), "LogSumExpGradient", d.extent[2]);
}

/// f(the call's SinkGradient, whether it is added to), if there is one.
template <class F, class... Extra> void with_sink_gradient(F&& f, const Extra&... extra) {
  [[maybe_unused]] const auto look = [&](const auto& e) {
    if constexpr (SinkGradientArgument<decltype(e)>) f(e.to, e.adds);
  };
  (look(extra), ...);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
