// SPDX-License-Identifier: Apache-2.0
#include <concepts>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/view.hpp>
#include <mha/policy/role.hpp>

namespace {

using mha::Role;
using mha::role_of;
using mha::detail::FirstFaulty;
using mha::detail::has_fault;
using enum mha::detail::Fault;

struct MaskLike {
  bool operator()(int, int, int q, int k) const { return k <= q; }
};
struct ScoreLike {
  template <class T> T operator()(T s, int, int, int, int) const { return s; }
};
struct FloatScore {
  float operator()(float s, int, int, int, int) const { return s; }
};
struct Declared {
  static constexpr Role role = Role::projection;
};
/// Declares one thing and has the shape of another: what it declares counts.
struct DeclaredMask : ScoreLike {
  using ScoreLike::operator();
  [[maybe_unused]] static constexpr Role role = Role::mask;
  bool operator()(int, int, int, int) const { return true; }
};
struct Both : MaskLike, ScoreLike {
  using MaskLike::operator();
  using ScoreLike::operator();
};
struct IntMask {
  int operator()(int, int, int, int) const { return 1; }
};
struct ForgetfulMask {
  bool operator()(int, int, int, int) { return true; }  // not const
};
struct BoolScore {
  bool operator()(float, int, int, int, int) const { return true; }
};
struct TextScore {
  const char* operator()(float, int, int, int, int) const { return ""; }
};
struct Nothing {};
struct Borrowing {
  [[maybe_unused]] static constexpr Role role = Role::mask;
  static constexpr bool borrows = true;
};
struct Owning {
  static constexpr bool borrows = false;
};
struct NamedOtherwise {
  static constexpr const char* role = "a role of another library";
};

TEST(RoleOf, IsTheOneDeclared) {
  static_assert(role_of<Declared>() == Role::projection);
  static_assert(role_of<const Declared&>() == Role::projection);
  static_assert(role_of<DeclaredMask>() == Role::mask);
  static_assert(mha::DeclaresRole<Declared> && !mha::DeclaresRole<MaskLike> && !mha::DeclaresRole<NamedOtherwise>);
}

TEST(RoleOf, IsToldByTheShapeOtherwise) {
  static_assert(role_of<MaskLike>() == Role::mask && role_of<const MaskLike&>() == Role::mask);
  static_assert(role_of<ScoreLike>() == Role::score && role_of<FloatScore>() == Role::score);
  static_assert(role_of<Both>() == Role::ambiguous);
  static_assert(role_of<Nothing>() == Role::none && role_of<int>() == Role::none &&
                role_of<NamedOtherwise>() == Role::none);
  const auto mask = [](auto, auto, auto q, auto k) { return k <= q; };
  const auto score = [](auto s, int, int, int q, int k) { return s - 0.5f * static_cast<float>(q - k); };
  static_assert(role_of<decltype(mask)>() == Role::mask && role_of<decltype(score)>() == Role::score);
  static_assert(role_of<decltype([](auto...) { return true; })>() == Role::mask, "a bool is no logit");
  static_assert(role_of<bool (*)(int, int, int, int)>() == Role::mask);
}

TEST(RoleOf, IsNoneForAlmostMasksAndScores) {
  static_assert(role_of<IntMask>() == Role::none, "a mask returns exactly bool");
  static_assert(role_of<ForgetfulMask>() == Role::none, "a mask is called on a const object");
  static_assert(role_of<BoolScore>() == Role::none && role_of<TextScore>() == Role::none);
}

TEST(Fault, TellsTheUnknownFromTheAlmostRight) {
  static_assert(has_fault<unknown, Nothing>() && has_fault<unknown, int>());
  static_assert(!has_fault<unknown, IntMask>() && !has_fault<unknown, MaskLike>() && !has_fault<unknown, Declared>());
  static_assert(has_fault<almost, IntMask>() && has_fault<almost, ForgetfulMask>() && has_fault<almost, BoolScore>());
  static_assert(!has_fault<almost, MaskLike>() && !has_fault<almost, Nothing>() && !has_fault<almost, Declared>());
  static_assert(has_fault<almost, Borrowing>(), "it declares a mask and has no operator");
  const auto of_two = [](int q, int k) { return k <= q; };
  static_assert(has_fault<almost, decltype(of_two)>() && !has_fault<unknown, decltype(of_two)>());
  static_assert(has_fault<unknown, mha::TensorView<float, 2>>(), "elements are no policy");
  static_assert(has_fault<ambiguous, Both>() && !has_fault<ambiguous, DeclaredMask>());
  static_assert(has_fault<borrowing, Borrowing>() && !has_fault<borrowing, Owning>() &&
                !has_fault<borrowing, MaskLike>());
}

TEST(FirstFaulty, NamesTheFirstOfAList) {
  static_assert(std::same_as<FirstFaulty<unknown, MaskLike, Nothing, int>::type, Nothing>);
  static_assert(std::same_as<FirstFaulty<almost, Nothing, MaskLike, BoolScore, IntMask>::type, BoolScore>);
  static_assert(std::same_as<FirstFaulty<unknown, MaskLike, ScoreLike>::type, mha::detail::NoType>);
  static_assert(mha::detail::no_faulty_policy<FirstFaulty<unknown>::type>);
}

TEST(CountRole, CountsEachRole) {
  using mha::detail::count_role;
  static_assert(count_role<Role::mask, MaskLike, Declared, DeclaredMask, ScoreLike> == 2);
  static_assert(count_role<Role::score, MaskLike> == 0 && count_role<Role::mask> == 0);
}

TEST(PickRole, FindsThePolicyInAnyOrderOrTheDefault) {
  using mha::detail::PickRole;
  static_assert(std::same_as<PickRole<Role::score, Nothing, MaskLike, ScoreLike>::type, ScoreLike>);
  static_assert(std::same_as<PickRole<Role::score, Nothing, ScoreLike, MaskLike>::type, ScoreLike>);
  static_assert(std::same_as<PickRole<Role::score, Nothing, const ScoreLike&>::type, ScoreLike>);
  static_assert(std::same_as<PickRole<Role::heads, Nothing, MaskLike, ScoreLike>::type, Nothing>);
}

}  // namespace
