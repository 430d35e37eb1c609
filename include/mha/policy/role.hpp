// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The part a policy plays in a layer. A layer has one policy per role; the order in which they are written is free.
enum class Role { none, ambiguous, heads, mask, score, sink, dropout, norm, position, projection, concat, output };

/// A policy that says what it is: `static constexpr mha::Role role = mha::Role::mask;`
template <class P>
concept DeclaresRole = requires {
  { std::remove_cvref_t<P>::role } -> std::convertible_to<Role>;
};

/// Has the shape of a mask: four indices to exactly bool.
template <class P>
concept MaskFunctor = requires(const P& p, Index i) {
  { p(i, i, i, i) } -> std::same_as<bool>;
};

/// Has the shape of a score: a logit and four indices to a number that is not a bool.
template <class P>
concept ScoreFunctor = requires(const P& p, float s, Index i) {
  { p(s, i, i, i, i) } -> std::convertible_to<float>;
  requires !std::same_as<decltype(p(s, i, i, i, i)), bool>;
};

/// The role of a type: the one it declares, else the one its shape tells.
template <class P> constexpr Role role_of() {
  using U = std::remove_cvref_t<P>;
  if constexpr (DeclaresRole<U>)
    return U::role;
  else if constexpr (MaskFunctor<U> && ScoreFunctor<U>)
    return Role::ambiguous;
  else if constexpr (MaskFunctor<U>)
    return Role::mask;
  else if constexpr (ScoreFunctor<U>)
    return Role::score;
  else
    return Role::none;
}

/// Whether a type plays this role.
template <class P, Role R> inline constexpr bool plays = role_of<P>() == R;

/// The value points at memory it does not own: it may be given to a call, never to a layer.
template <class P>
concept Borrows = requires {
  requires std::remove_cvref_t<P>::borrows;
};

/// What explain() calls a policy: its `static constexpr const char* name`, else "functor".
template <class P> constexpr const char* policy_name() {
  if constexpr (requires {
                  { P::name } -> std::convertible_to<const char*>;
                })
    return P::name;
  else
    return "functor";
}

namespace detail {

struct NoType {};

/// The class that a member function is declared in, as decltype(class_of_member(&F::member)).
template <class C, class R, class... Arguments> C class_of_member(R (C::*)(Arguments...) const);

template <class P>
concept AlmostMask = requires(P& p, Index i) {
  p(i, i, i, i);
};
template <class P>
concept AlmostScore = requires(P& p, float s, Index i) {
  p(s, i, i, i, i);
};
/// A functor of any one signature; tensors, whose call operators are several, are none.
template <class P>
concept AnyFunctor = requires {
  &std::remove_cvref_t<P>::operator();
};

enum class Fault { unknown, almost, ambiguous, borrowing };

/// Whether policy P has this fault.
template <Fault F, class P> constexpr bool has_fault() {
  using U = std::remove_cvref_t<P>;
  constexpr bool callable = AlmostMask<P> || AlmostScore<P> || AnyFunctor<P>;
  constexpr Role role = role_of<P>();
  if constexpr (F == Fault::unknown)
    return role == Role::none && !callable;
  else if constexpr (F == Fault::almost)
    return (role == Role::none && callable) || (role == Role::mask && !MaskFunctor<U>) ||
           (role == Role::score && !ScoreFunctor<U>);
  else if constexpr (F == Fault::ambiguous)
    return role == Role::ambiguous;
  else
    return Borrows<P>;
}

/// The first policy with this fault, so that the compiler's note names it; NoType when there is none.
template <Fault F, class... P> struct FirstFaulty { using type = NoType; };
template <Fault F, class P, class... Rest> struct FirstFaulty<F, P, Rest...> {
  using type = typename std::conditional_t<has_fault<F, P>(), std::type_identity<P>, FirstFaulty<F, Rest...>>::type;
};

template <Role R, class... P> constexpr int count_role = (0 + ... + static_cast<int>(role_of<P>() == R));

/// The policy of a role in a list, or the default.
template <Role R, class Default, class... P> struct PickRole { using type = Default; };
template <Role R, class Default, class P, class... Rest> struct PickRole<R, Default, P, Rest...> {
  using type = typename std::conditional_t<role_of<P>() == R, std::type_identity<std::remove_cvref_t<P>>,
                                           PickRole<R, Default, Rest...>>::type;
};

/// True when the type is NoType; otherwise the compiler's note for the failed assertion names Faulty.
template <class Faulty> constexpr bool no_faulty_policy = std::same_as<Faulty, NoType>;

/// The sentences for functors that are almost a policy, or two at once.
template <class... P> constexpr void check_functors() {
  static_assert(no_faulty_policy<typename FirstFaulty<Fault::almost, P...>::type>,
                "mha: a functor is neither a mask, 'bool operator()(Index b, Index h, Index q, Index k) const', nor a "
                "score, 'template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const' "
                "(see mha/policy/mask.hpp and score.hpp)");
  static_assert(no_faulty_policy<typename FirstFaulty<Fault::ambiguous, P...>::type>,
                "mha: a functor can be called as a mask and as a score: say which with 'static constexpr mha::Role "
                "role = mha::Role::mask;' (see mha/policy/role.hpp)");
}

/// The sentences for a list of which every type should be a policy.
template <class... P> constexpr void check_roles() {
  static_assert(no_faulty_policy<typename FirstFaulty<Fault::unknown, P...>::type>,
                "mha: a type in the list is not a policy (see mha/policy/role.hpp for the roles)");
  check_functors<P...>();
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
