// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "backend/backward.hpp"
#include "call.hpp"
#include "core/add_to.hpp"
#include "log_sum_exp_gradient.hpp"
#include "score_gradients.hpp"
#include "tape.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Where attention_backward_into() writes: {dq, dk, dv}, each a tensor, add_to() of one, or {}, which is not computed.
template <class T> struct AttentionGradientsTo { GradientTo<T> query, key, value; };

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

template <class T> constexpr bool is_sink_gradient = false;
template <class A> constexpr bool is_sink_gradient<SinkGradient<A>> = true;
template <class T> constexpr bool is_tape = false;
template <class T, class B> constexpr bool is_tape<AttentionTape<T, B>> = true;

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

/// f(the call's SinkGradient, whether it is added to), if there is one.
template <class F, class... Extra> void with_sink_gradient(F&& f, const Extra&... extra) {
  [[maybe_unused]] const auto look = [&](const auto& e) {
    if constexpr (SinkGradientArgument<decltype(e)>) f(e.to, e.adds);
  };
  (look(extra), ...);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
