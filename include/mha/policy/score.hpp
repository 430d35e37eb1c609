// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "../core/dual.hpp"
#include "call_shape.hpp"
#include "mask.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What happens to a scaled logit before mask and softmax:
///   T operator()(T s, Index b, Index h, Index q, Index k) const
///
/// Make the logit a template parameter and use the maths of mha:: (abs, exp, log, tanh, sqrt), not that of std::, which
/// takes no dual numbers: it then works in every scalar and on dual numbers, which is how its derivative is had.
/// A result of −∞ hides the pair. Optional members:
///   prepared(const CallShape&) const   as for masks: checks its data, takes what it needs from the call
///   void check(Index heads) const      as for masks: checks what does not depend on a call
///   at_head(Index b, Index h) const    a score for that head, so that what depends on the head is computed once
///   with_data(f) const                 as for masks
///   T derivative(T s, T t, Index b, Index h, Index q, Index k) const   ∂t/∂s at s, where the score is t
///   static constexpr bool additive     true: the result is s plus what does not depend on s, so its derivative is 1
///   static constexpr bool borrows      points at memory it does not own
///   static constexpr const char* name  what explain() calls it
///
/// A score that is a class template over its scalar and nothing else and has members of that scalar alone is trained:
/// attention_backward() gives their gradients as a score of the same type, unless it has
///   static constexpr bool trainable = false
/// Such a score has neither prepared() nor at_head(), and its body is defined for members that are dual numbers.
///
/// A score with more numbers than that, such as a table, is trained through two members of its own, for which
/// `trainable` and what it lacks are the same:
///   numbers()       a span of its numbers, of const ones where it is const; a copy of the score has numbers of its own
///   template <class G, class T> void accumulate(G gradient, T dt, T s, Index b, Index h, Index q, Index k) const
///                   gradient[i] += dt · ∂t/∂(number i) at s, gradient being a span of doubles as long as numbers();
///                   for pairs that are hidden it is not called. A call keeps as many sums for every tile of some 50
///                   queries of a head, so that an AdditiveBias serves a large table better. On a device it is
///                   MHA_HOST_DEVICE, as operator(), and the span one that has [], data() and size()
/// The score is asked about hidden pairs too, and q is negative where more queries than keys are aligned at their ends.
///
/// A whole score, in the user's own code:
///   template <class T = float> struct Distance {
///     T slope;
///     template <class S> auto operator()(S s, int, int, int q, int k) const {
///       return s - slope * float(mha::abs(q - k));
///     }
///   };
template <class P>
concept Score = plays<P, Role::score> && ScoreFunctor<std::remove_cvref_t<P>>;

/// Whether a score says that its derivative is 1.
template <class S> inline constexpr bool is_additive = false;
template <class S>
requires requires { S::additive; }
inline constexpr bool is_additive<S> = S::additive;

namespace detail {

/// Whether a score says that its numbers are not trained, or has none of its own.
template <class S> constexpr bool declines_training() {
  if constexpr (requires { S::trainable; }) return !S::trainable;
  return Borrows<S>;
}

}  // namespace detail

/// A score by reference, for one whose copies might allocate, or are long.
template <class S> struct ScoreInPlace {
  static constexpr Role role = Role::score;
  static constexpr bool trainable = !detail::declines_training<S>();
  const S* score;
  template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index b, Index h, Index q, Index k) const {
    return static_cast<T>((*score)(s, b, h, q, k));
  }
  template <class T>
  MHA_HOST_DEVICE constexpr T derivative(T s, T t, Index b, Index h, Index q, Index k) const requires
      requires(const S& own) {
    own.derivative(s, t, b, h, q, k);
  }
  { return static_cast<T>(score->derivative(s, t, b, h, q, k)); }
  auto numbers() const requires requires(const S& own) { own.numbers(); }
  { return score->numbers(); }
  template <class G, class T>
  void accumulate(G gradient, T dt, T s, Index b, Index h, Index q, Index k) const requires requires(const S& own) {
    own.accumulate(gradient, dt, s, b, h, q, k);
  }
  { score->accumulate(gradient, dt, s, b, h, q, k); }
};

namespace detail {

/// A score that has its numbers within itself, a table of them: a kernel would copy it for each thread and tile.
template <class S>
concept HoldsTable = sizeof(S) > 64 && requires(const S& s) {
  s.numbers();
};

}  // namespace detail

/// The score as it is for one sequence and head, cheap to copy; the score itself must outlive it.
template <class S> MHA_HOST_DEVICE constexpr auto at_head(const S& score, Index b, Index h) {
  if constexpr (requires { score.at_head(b, h); })
    return score.at_head(b, h);
  else if constexpr (std::is_trivially_copyable_v<S> && !detail::HoldsTable<S>)
    return score;
  else
    return ScoreInPlace<S>{&score};
}

/// Logits as they are.
struct NoScore {
  static constexpr Role role = Role::score;
  static constexpr const char* name = "none";
  static constexpr bool additive = true;
  template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index, Index, Index, Index) const { return s; }
};

/// First a, then b: Chain{SoftCap{30.f}, Alibi{}}.
template <class A, class B> struct Chain {
  static constexpr Role role = Role::score;
  static constexpr bool borrows = Borrows<A> || Borrows<B>;
  static constexpr bool additive = is_additive<A> && is_additive<B>;
  A first;
  B second;

  template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index b, Index h, Index q, Index k) const {
    return second(first(s, b, h, q, k), b, h, q, k);
  }
  template <class... Frame> constexpr auto prepared(const CallShape& s, Frame&... frame) const {
    return chained(mha::prepared(first, s, frame...), mha::prepared(second, s, frame...));
  }
  constexpr void check(Index heads) const { detail::check_policy(first, heads), detail::check_policy(second, heads); }
  MHA_HOST_DEVICE constexpr auto at_head(Index b, Index h) const {
    return chained(mha::at_head(first, b, h), mha::at_head(second, b, h));
  }
  template <class F> constexpr Chain with_data(F&& f) const {
    return {mha::with_data(first, f), mha::with_data(second, f)};
  }

 private:
  template <class X, class Y> MHA_HOST_DEVICE static constexpr Chain<X, Y> chained(X x, Y y) { return {x, y}; }
};
template <class A, class B> Chain(A, B) -> Chain<A, B>;

/// What mha::score() makes of a lambda.
template <class F> struct FunctionScore : F { static constexpr Role role = Role::score; };
/// A lambda as a score: mha::score([](auto s, int, int, int q, int k) { return s - 0.1f * float(q - k); }).
template <class F> [[nodiscard]] constexpr auto score(F f) {
  static_assert(ScoreFunctor<F>,
                "mha: score(f) needs a functor 'template <class T> T operator()(T s, Index b, Index h, Index q, Index "
                "k) const' (see mha/policy/score.hpp)");
  if constexpr (ScoreFunctor<F> && std::is_class_v<F>)
    return FunctionScore<F>{f};
  else if constexpr (ScoreFunctor<F>)
    return f;  // a pointer to a function is one as it is
  else
    return NoScore{};
}

namespace detail {

template <class S, class D>
concept TakesLogit = requires(const S& score, D logit, Index i) {
  score(logit, i, i, i, i);
};
/// The sentence for a score that is differentiated and has no derivative.
template <bool has_derivative> MHA_HOST_DEVICE constexpr void check_derivative() {
  static_assert(has_derivative,
                "mha: this score takes one number type only, so it has no derivative: make the logit a template "
                "parameter, 'template <class T> T operator()(T s, ...) const', and use mha::exp, mha::abs and the like "
                "(see mha/policy/score.hpp)");
}

}  // namespace detail

/// The score and its derivative with respect to the logit, by one evaluation on a dual number.
template <class T, class S>
[[nodiscard]] MHA_HOST_DEVICE Dual<T> differentiate(const S& score, T logit, Index b, Index h, Index q, Index k) {
  detail::check_derivative<detail::TakesLogit<S, Dual<T>>>();
  return score(Dual<T>::variable(logit), b, h, q, k);
}

namespace detail {

/// Both scores as one; NoScore is left out.
template <class A, class B> constexpr auto chain(const A& a, const B& b) {
  if constexpr (std::is_same_v<A, NoScore>)
    return b;
  else if constexpr (std::is_same_v<B, NoScore>)
    return a;
  else
    return Chain<A, B>{a, b};
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
