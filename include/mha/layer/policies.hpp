// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../core/check.hpp"
#include "../policy/concat.hpp"
#include "../policy/dropout.hpp"
#include "../policy/heads.hpp"
#include "../policy/mask.hpp"
#include "../policy/mask/positional.hpp"
#include "../policy/output.hpp"
#include "../policy/position.hpp"
#include "../policy/projection.hpp"
#include "../policy/qk_norm.hpp"
#include "../policy/role.hpp"
#include "../policy/score.hpp"
#include "../policy/sink.hpp"

/// The policies that a layer's type names.
namespace mha::inline MHA_NAMESPACE::detail {

/// The sentences for a layer's list of policies.
template <class... P> constexpr void check_layer_policies() {
  check_roles<P...>();
  static_assert(no_faulty_policy<typename FirstFaulty<Fault::borrowing, P...>::type>,
                "mha: a policy borrows the data of one call, so a layer cannot own it: give it to the call, "
                "layer(x, mha::Padding{lengths}) (see mha/policy/mask.hpp)");
  static_assert(
      count_role<Role::heads, P...> <= 1,
      "mha: two heads policies: keep one of MultiHead, GroupedQuery<n>, MultiQuery (see mha/policy/heads.hpp)");
  static_assert(count_role<Role::mask, P...> <= 1,
                "mha: two masks: write mha::And<A, B> or mha::Or<A, B> (see mha/policy/mask.hpp)");
  static_assert(count_role<Role::score, P...> <= 1,
                "mha: two scores: write mha::Chain<First, Second> (see mha/policy/score.hpp)");
  static_assert(count_role<Role::sink, P...> <= 1, "mha: two sinks: keep one (see mha/policy/sink.hpp)");
  static_assert(count_role<Role::dropout, P...> <= 1, "mha: two dropouts: keep one (see mha/policy/dropout.hpp)");
  static_assert(count_role<Role::norm, P...> <= 1, "mha: two norms: keep one (see mha/policy/qk_norm.hpp)");
  static_assert(count_role<Role::position, P...> <= 1, "mha: two positions: keep one (see mha/policy/position.hpp)");
  static_assert(count_role<Role::projection, P...> <= 1,
                "mha: two projection policies: keep one of FusedProjection, PerHeadProjection "
                "(see mha/policy/projection.hpp)");
  static_assert(count_role<Role::concat, P...> <= 1, "mha: two concat policies: keep one (see mha/policy/concat.hpp)");
  static_assert(count_role<Role::output, P...> <= 1,
                "mha: two output policies: keep one of LinearOutput, NoOutput (see mha/policy/output.hpp)");
}

/// The value of a role among those given, else the policy's default.
template <Role R, class Policy> constexpr Policy policy_value() {
  static_assert(std::default_initializable<Policy>,
                "mha: this policy has a member without a default: give its value to the constructor, "
                "layer({...}, mha::SlidingWindow{.left = 256}) (see mha/layer/multi_head_attention.hpp)");
  return default_value<Policy>();
}
template <Role R, class Policy, class V, class... Rest>
constexpr Policy policy_value(const V& first, const Rest&... rest) {
  if constexpr (role_of<V>() == R)
    return first;
  else
    return policy_value<R, Policy>(rest...);
}

/// The policies of a layer, one of each role: their types, and the values of those that may hold data. PoliciesByRole
/// sorts a list into it, so that layers whose policies are written in another order are one type.
template <mha::Heads HeadsPolicy, mha::Mask MaskPolicy, mha::Score ScorePolicy, mha::SinkPolicy SinkValue,
          mha::Norm NormPolicy, mha::Position PositionPolicy, mha::Projection ProjectionPolicy,
          mha::Concat ConcatPolicy, mha::Output OutputPolicy, mha::DropoutPolicy DropoutValue>
struct LayerPolicies {
  using Heads = HeadsPolicy;
  using Mask = MaskPolicy;
  using Score = ScorePolicy;
  using Sink = SinkValue;
  using Norm = NormPolicy;
  using Position = PositionPolicy;
  using Projection = ProjectionPolicy;
  using Concat = ConcatPolicy;
  using Output = OutputPolicy;
  using Dropout = DropoutValue;

  Mask mask;
  Score score;
  Sink sink;
  Norm norm;
  Position position;
  Dropout dropout;

  /// The values given, in any order, and defaults for the rest.
  template <class... Values> static constexpr LayerPolicies from(const Values&... values) {
    return {policy_value<Role::mask, Mask>(values...),         policy_value<Role::score, Score>(values...),
            policy_value<Role::sink, Sink>(values...),         policy_value<Role::norm, Norm>(values...),
            policy_value<Role::position, Position>(values...), policy_value<Role::dropout, Dropout>(values...)};
  }
};

/// P if it keeps its role's concept, else what stands in for it, so that our sentence is the only error.
template <bool Keeps, class P, class StandIn> using OrStandIn = std::conditional_t<Keeps, P, StandIn>;

/// Policies in any order, at most one of each role, and the defaults of the other roles.
template <class... P> struct SortedPolicies {
  template <Role R, class Default> using Pick = typename PickRole<R, Default, P...>::type;
  using MaskPolicy = Pick<Role::mask, Full>;
  using ScorePolicy = Pick<Role::score, NoScore>;
  using type =
      LayerPolicies<Pick<Role::heads, MultiHead>, OrStandIn<Mask<MaskPolicy>, MaskPolicy, Full>,
                    OrStandIn<Score<ScorePolicy>, ScorePolicy, NoScore>, Pick<Role::sink, NoSink>,
                    Pick<Role::norm, NoNorm>, Pick<Role::position, NoPosition>, Pick<Role::projection, FusedProjection>,
                    Pick<Role::concat, ConcatHeads>, Pick<Role::output, LinearOutput>, Pick<Role::dropout, NoDropout>>;
};
template <class... P> using PoliciesByRole = typename SortedPolicies<P...>::type;

/// Whether two values of a policy are known to do the same: of one type, and equal or without a value.
template <class A, class B> constexpr bool same_policy(const A&, const B&) { return false; }
template <class P> constexpr bool same_policy(const P& a, const P& b) {
  if constexpr (std::is_empty_v<P>)
    return true;
  else if constexpr (std::equality_comparable<P>)
    return a == b;
  else
    return false;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
