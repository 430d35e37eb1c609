// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "../core/check.hpp"
#include "call_shape.hpp"
#include "role.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a mask says of a rectangle of (query, key) pairs. `none` and `full` are promises; `partial` is always allowed.
enum class TileVisibility : unsigned char { none, partial, full };

/// Which keys a query sees: `bool operator()(Index b, Index h, Index q, Index k) const`, true = visible.
///
/// Positions are absolute (CallShape): the same mask serves a whole prompt, a chunk of it and a single step. Without an
/// Origin the query of row i is at q = i + Lk − Lq, which may be below 0; Origin{0} makes q the row. Write
/// MHA_HOST_DEVICE before the operator where CUDA is wanted. Optional members:
///   TileVisibility tile(b, h, q_begin, q_end, k_begin, k_end) const   lets kernels skip hidden tiles and leave visible
///                                                                     ones untested; without it a mask is right,
///                                                                     slower: a CPU's backends ask about all pairs of
///                                                                     a tile before they compute it, Cuda computes
///                                                                     it. A tile() that is inherited beside an
///                                                                     operator() of the mask's own is not called
///   Mask prepared(const CallShape&) const       once per call, on the host: checks its data, takes what it needs
///   void check(Index heads) const               when a layer is made of it: checks what does not depend on a call
///   Mask with_data(f) const                     its Borrowed and Origins members replaced by f(member): how data moves
///                                               to a device
///   static constexpr bool borrows = true        points at memory it does not own
///   static constexpr const char* name           what explain() calls it
/// What prepared() and with_data() return must not point into *this, which is gone by then; at what its shared_ptrs
/// hold it may.
///
/// A whole mask, in the user's own code:
///   struct Strided { bool operator()(int, int, int q, int k) const { return k <= q && (q - k) % 4 == 0; } };
///   auto y = mha::attention(q, k, v, Strided{});
template <class P>
concept Mask = plays<P, Role::mask> && MaskFunctor<std::remove_cvref_t<P>>;

namespace detail {

/// Own inherits from another mask or score.
template <class Own, class Other>
concept InheritsFrom =
    !std::same_as<Own, Other> && std::derived_from<Own, Other> && (MaskFunctor<Other> || ScoreFunctor<Other>);

/// A mask with an operator() of its own and the tile() of another that it inherits from, which tells nothing of it.
template <class M>
concept InheritsTile = InheritsFrom<decltype(class_of_member(&M::operator())), decltype(class_of_member(&M::tile))>;

/// Whether P calls what Base calls.
template <class P, class Base>
concept InheritsCall = requires {
  requires std::same_as<decltype(&P::operator()), decltype(&Base::operator())>;
}
|| requires {
  requires std::same_as<decltype(&P::template operator()<float>), decltype(&Base::template operator()<float>)>;
};

/// Whether prepared() is that of another policy, which P inherits from, and P has an operator() of its own.
template <class P> constexpr bool inherits_prepared() {
  const auto of = []<class Base>(std::type_identity<Base>) { return InheritsFrom<P, Base> && !InheritsCall<P, Base>; };
  if constexpr (requires { class_of_member(&P::prepared); })
    return of(std::type_identity<decltype(class_of_member(&P::prepared))>{});
  else if constexpr (requires { class_of_member(&P::template prepared<>); })
    return of(std::type_identity<decltype(class_of_member(&P::template prepared<>))>{});
  else
    return false;
}

/// The sentence for a policy whose own operator() is not in what its prepared() returns.
template <class P, class Ready> constexpr void check_prepared() {
  constexpr bool calls_own = !inherits_prepared<P>() || std::derived_from<Ready, P>;
  static_assert(calls_own,
                "mha: a policy has an operator() of its own and inherits a prepared() that does not return it, so that "
                "it would never be called: make the other policy a member, compose them with &&, Chain and the like, "
                "or write prepared() too (see mha/policy/mask.hpp)");
}

/// Whether M has a tile() that is about its own operator().
template <class M>
concept TellsTiles = !InheritsTile<M> && requires(const M& mask, Index i) {
  { mask.tile(i, i, i, i, i, i) } -> std::convertible_to<TileVisibility>;
};

}  // namespace detail

/// What `mask` says of queries [q_begin, q_end) × keys [k_begin, k_end); `partial` if it has no tile().
template <class M>
MHA_HOST_DEVICE constexpr TileVisibility tile(const M& mask, Index b, Index h, Index q_begin, Index q_end,
                                              Index k_begin, Index k_end) {
  if constexpr (detail::TellsTiles<M>) {
    return mask.tile(b, h, q_begin, q_end, k_begin, k_end);
  } else {
    static_assert(
        detail::InheritsTile<M> || !requires { &M::tile; },
        "mha: a mask's member tile takes (int b, int h, int q_begin, int q_end, int k_begin, int k_end), is "
        "const and returns mha::TileVisibility (see mha/policy/mask.hpp)");
    return TileVisibility::partial;
  }
}

/// The policy value a kernel gets for one call. A policy of the library may take memory from the call's frame.
///
/// Errors    ShapeError if the policy is a pointer to a function or a std::function that is null; those of its own
///           prepared()
template <class P, class... Frame>
constexpr auto prepared(const P& policy, const CallShape& shape, [[maybe_unused]] Frame&... frame) {
  if constexpr (requires { policy.prepared(shape, frame...); }) {
    detail::check_prepared<P, std::remove_cvref_t<decltype(policy.prepared(shape, frame...))>>();
    return policy.prepared(shape, frame...);
  } else if constexpr (requires { policy.prepared(shape); }) {
    detail::check_prepared<P, std::remove_cvref_t<decltype(policy.prepared(shape))>>();
    return policy.prepared(shape);
  } else {
    detail::require_function(plays<P, Role::mask> ? "mask" : "score", policy);
    return policy;
  }
}

namespace detail {

/// Checks what a mask or score says for every call with this many heads.
///
/// Errors    ShapeError of its own check(), or if it is a pointer to a function or a std::function that is null
template <class P> constexpr void check_policy(const P& policy, Index heads) {
  if constexpr (requires {
                  { policy.check(heads) } -> std::same_as<void>;
                })
    policy.check(heads);
  else
    require_function(plays<P, Role::mask> ? "mask" : "score", policy);
}

}  // namespace detail

/// The policy value with every Borrowed and Origins member replaced by f(member).
template <class P, class F> constexpr P with_data(const P& policy, F&& f) {
  if constexpr (requires { policy.with_data(f); })
    return policy.with_data(f);
  else
    return policy;
}

/// Visible where both are.
template <class A, class B> struct And {
  static constexpr Role role = Role::mask;
  static constexpr bool borrows = Borrows<A> || Borrows<B>;
  A a;
  B b;

  MHA_HOST_DEVICE constexpr bool operator()(Index n, Index h, Index q, Index k) const {
    return a(n, h, q, k) && b(n, h, q, k);
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index n, Index h, Index q0, Index q1, Index k0, Index k1) const {
    const auto x = mha::tile(a, n, h, q0, q1, k0, k1);
    if (x == TileVisibility::none) return x;
    const auto y = mha::tile(b, n, h, q0, q1, k0, k1);
    return x < y ? x : y;
  }
  constexpr auto prepared(const CallShape& s) const;
  constexpr void check(Index heads) const { detail::check_policy(a, heads), detail::check_policy(b, heads); }
  template <class F> constexpr And with_data(F&& f) const { return {mha::with_data(a, f), mha::with_data(b, f)}; }
};
template <class A, class B> And(A, B) -> And<A, B>;

/// Visible where either is.
template <class A, class B> struct Or {
  static constexpr Role role = Role::mask;
  static constexpr bool borrows = Borrows<A> || Borrows<B>;
  A a;
  B b;

  MHA_HOST_DEVICE constexpr bool operator()(Index n, Index h, Index q, Index k) const {
    return a(n, h, q, k) || b(n, h, q, k);
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index n, Index h, Index q0, Index q1, Index k0, Index k1) const {
    const auto x = mha::tile(a, n, h, q0, q1, k0, k1);
    if (x == TileVisibility::full) return x;
    const auto y = mha::tile(b, n, h, q0, q1, k0, k1);
    return x < y ? y : x;
  }
  constexpr auto prepared(const CallShape& s) const;
  constexpr void check(Index heads) const { detail::check_policy(a, heads), detail::check_policy(b, heads); }
  template <class F> constexpr Or with_data(F&& f) const { return {mha::with_data(a, f), mha::with_data(b, f)}; }
};
template <class A, class B> Or(A, B) -> Or<A, B>;

/// Visible where the other is not.
template <class A> struct Not {
  static constexpr Role role = Role::mask;
  static constexpr bool borrows = Borrows<A>;
  A a;

  MHA_HOST_DEVICE constexpr bool operator()(Index n, Index h, Index q, Index k) const { return !a(n, h, q, k); }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index n, Index h, Index q0, Index q1, Index k0, Index k1) const {
    const auto x = mha::tile(a, n, h, q0, q1, k0, k1);
    return x == TileVisibility::none   ? TileVisibility::full
           : x == TileVisibility::full ? TileVisibility::none
                                       : TileVisibility::partial;
  }
  constexpr auto prepared(const CallShape& s) const;
  constexpr void check(Index heads) const { detail::check_policy(a, heads); }
  template <class F> constexpr Not with_data(F&& f) const { return {mha::with_data(a, f)}; }
};
template <class A> Not(A) -> Not<A>;

// prepared() may change a part's type, so the parts are asked first. Their types are spelled out: deduced from them,
// nvcc takes And{…} for the class it stands in.
template <class A, class B> constexpr auto And<A, B>::prepared(const CallShape& s) const {
  auto first = mha::prepared(a, s);
  auto second = mha::prepared(b, s);
  return And<decltype(first), decltype(second)>{first, second};
}
template <class A, class B> constexpr auto Or<A, B>::prepared(const CallShape& s) const {
  auto first = mha::prepared(a, s);
  auto second = mha::prepared(b, s);
  return Or<decltype(first), decltype(second)>{first, second};
}
template <class A> constexpr auto Not<A>::prepared(const CallShape& s) const {
  auto part = mha::prepared(a, s);
  return Not<decltype(part)>{part};  // Not{Not{x}} would be a copy of x's negation, not a second one
}

/// Masks compose with &&, || and !. For two masks of your own namespace write mha::And{A{}, B{}} or mha::mask(A{}).
template <Mask A, Mask B> constexpr And<A, B> operator&&(const A& a, const B& b) { return {a, b}; }
template <Mask A, Mask B> constexpr Or<A, B> operator||(const A& a, const B& b) { return {a, b}; }
template <Mask A> constexpr Not<A> operator!(const A& a) { return {a}; }

namespace detail {

/// Whether a mask has no tile(), or one of those that it is composed of.
template <class M> inline constexpr bool silent_on_tiles = !TellsTiles<M>;
template <class A, class B> inline constexpr bool silent_on_tiles<And<A, B>> = silent_on_tiles<A> || silent_on_tiles<B>;
template <class A, class B> inline constexpr bool silent_on_tiles<Or<A, B>> = silent_on_tiles<A> || silent_on_tiles<B>;
template <class A> inline constexpr bool silent_on_tiles<Not<A>> = silent_on_tiles<A>;

/// Stands for a functor that is not a mask, so that our sentence is the only error.
struct RefusedMask {
  static constexpr Role role = Role::mask;
  constexpr bool operator()(Index, Index, Index, Index) const { return true; }
};

}  // namespace detail

/// What mha::mask() makes of a lambda or of a pointer to a function.
template <class F> struct FunctionMask : F { static constexpr Role role = Role::mask; };
template <class F>
requires(std::is_pointer_v<F>) struct FunctionMask<F> {
  static constexpr Role role = Role::mask;
  F function;
  bool operator()(Index b, Index h, Index q, Index k) const { return function(b, h, q, k); }
  friend bool operator==(const FunctionMask& m, std::nullptr_t) { return m.function == nullptr; }
};
/// A lambda, or a pointer to a function, as a mask: mha::mask([](int, int, int q, int k) { return k <= q; }).
template <class F> [[nodiscard]] constexpr auto mask(F f) {
  static_assert(MaskFunctor<F>,
                "mha: mask(f) needs a functor 'bool operator()(Index b, Index h, Index q, Index k) const' that returns "
                "exactly bool (see mha/policy/mask.hpp)");
  if constexpr (MaskFunctor<F>)
    return FunctionMask<F>{f};
  else
    return detail::RefusedMask{};
}

}  // namespace mha::inline MHA_NAMESPACE
