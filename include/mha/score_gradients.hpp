// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "backend/backward.hpp"
#include "bias_gradient.hpp"
#include "call.hpp"
#include "core/check.hpp"
#include "core/dual.hpp"
#include "core/overlap.hpp"
#include "core/view.hpp"
#include "policy/score/additive_bias.hpp"
#include "policy/score/relative_bias.hpp"
#include "policy/score_gradient.hpp"
#include "policy/trained_score.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Where attention_backward_into() writes the gradients of the numbers of the call's trained scores: a score of the
/// same type, of several a Chain of them in the order written.
template <class S> struct ScoreGradient {
  static_assert(!std::is_const_v<S>,
                "mha: ScoreGradient writes its score, and this one is const (see mha/score_gradients.hpp)");
  S* to;
  constexpr explicit ScoreGradient(S& score) : to(&score) {}
};

namespace detail {

template <class T> constexpr bool is_score_gradient = false;
template <class S> constexpr bool is_score_gradient<ScoreGradient<S>> = true;
template <class E>
concept ScoreGradientArgument = is_score_gradient<std::remove_cvref_t<E>>;

/// A score of one number type only is no function of a dual number.
template <class A, class S, bool Parameters> constexpr bool has_derivative() {
  if constexpr (is_chain<S>)
    return has_derivative<A, decltype(S::first), Parameters>() && has_derivative<A, decltype(S::second), Parameters>();
  else if constexpr (Parameters && is_trained_template<S>())
    return TakesLogit<typename ScoreTemplate<S>::template On<Dual<A, 2>>, Dual<A, 2>>;
  else
    return HasOwnDerivative<S> || TakesLogit<S, Dual<A>>;
}
template <class S> constexpr bool has_wrong_accumulate() {
  if constexpr (is_chain<S>)
    return has_wrong_accumulate<decltype(S::first)>() || has_wrong_accumulate<decltype(S::second)>();
  else
    return almost_accumulates<S>();
}
template <class S> constexpr bool has_foreign_member() {
  if constexpr (is_chain<S>)
    return has_foreign_member<decltype(S::first)>() || has_foreign_member<decltype(S::second)>();
  else
    return asks_training<S>() && !is_trained_template<S>();
}

/// AdditiveBiases in a score.
template <class S> constexpr int count_biases = is_bias<ScoreOnHost<std::remove_cv_t<S>>> ? 1 : 0;
template <class A, class B> constexpr int count_biases<Chain<A, B>> = count_biases<A> + count_biases<B>;

/// The only AdditiveBias of a score.
template <class S> constexpr const auto& bias_of(const S& score) {
  if constexpr (!is_chain<S>)
    return score;
  else if constexpr (count_biases<decltype(score.first)> == 1)
    return bias_of(score.first);
  else
    return bias_of(score.second);
}

/// The destination fits the bias.
template <class B, class E>
void require_bias_gradient(const char* call, const TensorView<const B, 4>& bias, const TensorView<E, 4>& to) {
  require_data(call, "BiasGradient", to);
  for (int a = 0; a < 4; ++a)
    require_equal(call, axes_of_pairs[a], "AdditiveBias", bias.extent[a], "BiasGradient", to.extent[a]);
  require_own_memory(call, "the BiasGradient", to, axes_of_pairs);
  require(!share_elements(to, bias), call, ": the BiasGradient overlaps the AdditiveBias that is still read");
}

/// The call's BiasGradient.
template <class E, class... Rest> constexpr const auto& given_bias_gradient(const E& first, const Rest&... rest) {
  if constexpr (BiasGradientArgument<E>)
    return first;
  else
    return given_bias_gradient(rest...);
}
/// The sentence for its scalar.
template <class A, class S, class... Extra> constexpr void check_bias_gradient() {
  if constexpr ((BiasGradientArgument<Extra> || ...) && count_biases<S> == 1) {
    using E = ScalarOf<decltype(given_bias_gradient(std::declval<const Extra&>()...).to)>;
    using Bias = ScalarOf<decltype(bias_of(std::declval<const S&>()).bias)>;
    static_assert(std::is_same_v<E, A> || std::is_same_v<E, Bias>,
                  "mha: BiasGradient has the scalar of the bias or the accumulator's (see mha/score_gradients.hpp)");
  }
}

/// The sums of a call's slots and tables.
///
/// Shapes    slots (B, Hq, count), from `own` on those of scores that accumulate
template <class A> struct ScoreSums {
  const LongSum<A>* slots = nullptr;
  const TableGradient<A, LongSum<A>>* tables = nullptr;
  CallShape shape{};
  int count = 0, own = 0;

  LongSum<A> of(int slot, Index h) const {
    LongSum<A> sum(0);
    for (Index b = 0; b < shape.batch; ++b) sum += slots[(std::ptrdiff_t{b} * shape.heads + h) * count + slot];
    return sum;
  }
  LongSum<A> of(int slot) const {
    LongSum<A> sum(0);
    for (Index h = 0; h < shape.heads; ++h) sum += of(slot, h);
    return sum;
  }
};

/// The sums of a RelativeBias' gradient for each head of each sequence and distance.
template <class A, class Frame> TableGradient<A, LongSum<A>> distance_sums(const CallShape& shape, Frame& frame) {
  const auto [least, count] = RelativeBias::distances_of(shape);
  const std::size_t n =
      static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(count);
  LongSum<A>* const sums = frame.template take<LongSum<A>>(n);
  std::fill_n(sums, n, LongSum<A>(0));
  return {sums - least, nullptr, {shape.heads * count, count, -1, 1}, Origins(Index{0}), least, count};
}

/// The gradients of the numbers of S in a score of the type Trained<S> += their sums, of which the first slot, table
/// and slot of a score that accumulates are these.
template <class Wanted, class S, class G, class A>
void add_gradients(G& to, const ScoreSums<A>& sums, int& slot, int& table, int& own) {
  if constexpr (is_chain<S>) {
    using First = decltype(S::first);
    using Second = decltype(S::second);
    NoScore none;
    if constexpr (std::is_same_v<Trained<First>, NoScore>) {
      add_gradients<Wanted, First>(none, sums, slot, table, own);
      add_gradients<Wanted, Second>(to, sums, slot, table, own);
    } else if constexpr (std::is_same_v<Trained<Second>, NoScore>) {
      add_gradients<Wanted, First>(to, sums, slot, table, own);
      add_gradients<Wanted, Second>(none, sums, slot, table, own);
    } else {
      add_gradients<Wanted, First>(to.first, sums, slot, table, own);
      add_gradients<Wanted, Second>(to.second, sums, slot, table, own);
    }
  } else if constexpr (is_trained_template<S>()) {
    auto members = members_of(to);
    for (auto& x : members) x += static_cast<std::remove_cvref_t<decltype(x)>>(sums.of(slot++));
    to = std::bit_cast<S>(members);
  } else if constexpr (LibraryTrained<S>) {
    to.add(sums, slot, table);
  } else if constexpr (Accumulates<S>) {
    for (auto& x : to.numbers()) x += static_cast<std::remove_cvref_t<decltype(x)>>(sums.of(own++));
  } else if constexpr (is_bias<S> && Wanted::bias) {
    ++table;
  }
}

/// The same of the first scores of a call.
template <class Wanted, class S, class G, class A> void add_all_gradients(G& to, const ScoreSums<A>& sums) {
  int slot = 0, table = 0, own = sums.own;
  add_gradients<Wanted, S>(to, sums, slot, table, own);
}

/// The tables of a score's gradients, in the order of its parts.
template <class Wanted, class A, class S, class Frame, class Bias>
void place_tables(const S& score, TableGradient<A, LongSum<A>>*& next, const CallShape& shape, Frame& frame,
                  const Bias& bias) {
  if constexpr (is_chain<S>) {
    place_tables<typename Wanted::First, A>(score.first, next, shape, frame, bias);
    place_tables<typename Wanted::Second, A>(score.second, next, shape, frame, bias);
  } else if constexpr (is_bias<S> && Wanted::bias) {
    *next++ = bias.table;
  } else if constexpr (std::is_same_v<S, RelativeBias> && Wanted::parameters) {
    *next++ = distance_sums<A>(shape, frame);
  }
}

/// The sums of the call's BiasGradient, checked, if it has one.
template <class A, class S, class Frame, class... Extra>
auto given_bias_sums(const char* call, const S& score, const CallShape& shape, Frame& frame, const Extra&... extra) {
  if constexpr ((BiasGradientArgument<Extra> || ...) && count_biases<S> == 1) {
    const auto& given = given_bias_gradient(extra...);
    require_bias_gradient(call, bias_of(score).bias, given.to);
    return TableSums<A, ScalarOf<decltype(given.to)>>(given, shape, frame);
  } else {
    return NoType{};
  }
}

/// What a call computes of its score: the gradients that it is given destinations for.
template <class... Extra>
using WantedOf = std::conditional_t<
    (BiasGradientArgument<Extra> || ...) || (ScoreGradientArgument<Extra> || ...),
    WantedScoreGradients<(BiasGradientArgument<Extra> || ...), (ScoreGradientArgument<Extra> || ...)>,
    NoScoreGradients>;

/// The gradients of a score's numbers from their sums to where the call was told.
template <class Wanted, class S, class A, class... Extra>
void store_score_gradients(const S& score, const ScoreSums<A>& sums, const Extra&... extra) {
  [[maybe_unused]] const auto look = [&](const auto& e) {
    if constexpr (ScoreGradientArgument<decltype(e)>) {
      constexpr bool fits = std::is_same_v<std::remove_cvref_t<decltype(*e.to)>, Trained<S>>;
      static_assert(fits,
                    "mha: ScoreGradient takes a score of the type of the call's trained score, of several a Chain in "
                    "the order written (see mha/score_gradients.hpp)");
      if constexpr (fits) {
        *e.to = without_numbers(trained(score));
        add_all_gradients<Wanted, S>(*e.to, sums);
      }
    }
  };
  if constexpr (Wanted::parameters) (look(extra), ...);
}

/// The sentences for the gradients of a score S, of which `Head` is what a backend has for a head. InTables: what has
/// sums in a table, a bias among it or not.
template <class A, class Wanted, class S, class Head, class InTables = Wanted> constexpr bool check_score_gradients() {
  static_assert(Tables<InTables, Head>::count() <= ScoreGradientsTo<A>::most_tables,
                "mha: at most 4 tables of scores have gradients in one call (see mha/score_gradients.hpp)");
  static_assert(
      is_trained_as_given<Wanted, S, Head>(),
      "mha: a trained score has neither prepared() nor at_head(), and theirs of another score return none that "
      "is trained: where they do, 'static constexpr bool trainable = false' (see mha/policy/score.hpp)");
  return true;
}

/// The gradients of a call's score, which outlives this, while they are computed. `Head` is its prepared score for a
/// head.
template <class A, class Wanted, class Head, class S, class Bias> class ScoreGradientSums {
  static constexpr int by_duals = Slots<Wanted, Head>::count();
  static_assert(check_score_gradients<A, Wanted, S, Head>());

 public:
  template <class Frame>
  ScoreGradientSums(const S& score, const Bias& bias, const CallShape& shape, Frame& frame)
      : score_(score), bias_(bias), shape_(shape) {
    to.count = by_duals + accumulated_numbers<Wanted>(score);
    if (to.count > 0) {
      const std::size_t n = static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.heads) *
                            static_cast<std::size_t>(to.count);
      to.slots = frame.template take<LongSum<A>>(n);
      std::fill_n(to.slots, n, LongSum<A>(0));
    }
    auto* next = to.tables;
    place_tables<Wanted, A>(score_, next, shape, frame, bias);
  }

  /// Where the call adds, cleared: asked for last, before the backend takes memory of its own.
  ScoreGradientsTo<A> cleared() const {
    if constexpr (requires { bias_.clear(); }) bias_.clear();
    return to;
  }
  /// The sums into the destinations that the call was given.
  template <class... Extra> void store(const Extra&... extra) const {
    if constexpr (requires { bias_.store(); }) bias_.store();
    store_score_gradients<Wanted>(score_, sums(), extra...);
  }

  ScoreSums<A> sums() const { return {to.slots, to.tables, shape_, to.count, by_duals}; }

  ScoreGradientsTo<A> to{};

 private:
  const S& score_;
  const Bias bias_;
  const CallShape shape_;
};

template <class A, class Wanted, class Head, class S, class Bias, class Frame>
auto score_gradient_sums(const S& score, const Bias& bias, const CallShape& shape, Frame& frame) {
  return ScoreGradientSums<A, Wanted, Head, S, Bias>(score, bias, shape, frame);
}

/// The sentences for a score that a backward pass differentiates.
template <class A, class S, bool Parameters> constexpr bool check_differentiated_score() {
  constexpr bool has = has_derivative<A, S, Parameters>();
  check_derivative<has>();
  static_assert(!has_wrong_accumulate<S>(),
                "mha: accumulate(gradient, dt, s, b, h, q, k) of a score takes a span of doubles, two numbers and four "
                "indices, is const, and stands beside numbers(), a span; or 'static constexpr bool trainable = false' "
                "(see mha/policy/score.hpp)");
  static_assert(
      !has_numbers_alone<S>(),
      "mha: a score with numbers() is trained by its accumulate(gradient, dt, s, b, h, q, k) const: write it, or "
      "'static constexpr bool trainable = false' (see mha/policy/score.hpp)");
  static_assert(
      !has || !has_foreign_member<S>(),
      "mha: a score that is a class template over its scalar is trained, and this one has a member of another "
      "type, or a copy constructor or destructor of its own: give it members of that scalar alone, or "
      "'static constexpr bool trainable = false' (see mha/policy/score.hpp)");
  constexpr bool takes_gradients = !Parameters || std::is_copy_assignable_v<Trained<S>>;
  static_assert(
      takes_gradients,
      "mha: the gradients of a trained score are assigned to a score of its type, and this one has no assignment: "
      "make no member const, or 'static constexpr bool trainable = false' (see mha/policy/score.hpp)");
  return has && takes_gradients;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
