// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../backend/cpu/cpu.hpp"
#include "initialize.hpp"
#include "layer.hpp"

namespace mha::inline v0 {

namespace detail {

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
  static_assert(count_role<Role::norm, P...> <= 1, "mha: two norms: keep one (see mha/policy/qk_norm.hpp)");
  static_assert(count_role<Role::position, P...> <= 1, "mha: two positions: keep one (see mha/policy/position.hpp)");
  static_assert(count_role<Role::projection, P...> <= 1,
                "mha: two projection policies: keep one of FusedProjection, PerHeadProjection "
                "(see mha/policy/projection.hpp)");
  static_assert(count_role<Role::concat, P...> <= 1, "mha: two concat policies: keep one (see mha/policy/concat.hpp)");
  static_assert(count_role<Role::output, P...> <= 1,
                "mha: two output policies: keep one of LinearOutput, NoOutput (see mha/policy/output.hpp)");
}

/// P if it keeps its role's concept, else what stands in for it, so that our sentence is the only error.
template <bool Keeps, class P, class StandIn> using OrStandIn = std::conditional_t<Keeps, P, StandIn>;

template <class Scalar, class B, class... P> struct LayerOf {
  static_assert(Backend<B>,
                "mha: the second template argument is no backend; one comes before the policies: "
                "MultiHeadAttention<float, mha::Cpu, mha::Causal> (see mha/backend/backend.hpp)");
  static_assert((check_layer_policies<P...>(), true));
  using HeadsPolicy = typename PickRole<Role::heads, MultiHead, P...>::type;
  using MaskPolicy = typename PickRole<Role::mask, Full, P...>::type;
  using ScorePolicy = typename PickRole<Role::score, NoScore, P...>::type;
  using SinkPolicyOf = typename PickRole<Role::sink, NoSink, P...>::type;
  using NormPolicy = typename PickRole<Role::norm, NoNorm, P...>::type;
  using PositionPolicy = typename PickRole<Role::position, NoPosition, P...>::type;
  using ProjectionPolicy = typename PickRole<Role::projection, FusedProjection, P...>::type;
  using ConcatPolicy = typename PickRole<Role::concat, ConcatHeads, P...>::type;
  using OutputPolicy = typename PickRole<Role::output, LinearOutput, P...>::type;
  using type = Layer<Scalar, OrStandIn<Backend<B>, B, Cpu>, HeadsPolicy, OrStandIn<Mask<MaskPolicy>, MaskPolicy, Full>,
                     OrStandIn<Score<ScorePolicy>, ScorePolicy, NoScore>, SinkPolicyOf, NormPolicy, PositionPolicy,
                     ProjectionPolicy, ConcatPolicy, OutputPolicy>;
};

/// The value of a role among the constructor's arguments, else the policy's default.
template <Role R, class Policy> constexpr Policy policy_value() {
  static_assert(std::default_initializable<Policy>,
                "mha: this policy has a member without a default: give its value to the constructor, "
                "layer({...}, mha::SlidingWindow{.left = 256}) (see mha/layer/multi_head_attention.hpp)");
  if constexpr (std::default_initializable<Policy>)
    return Policy{};
  else
    __builtin_unreachable();
}
template <Role R, class Policy, class V, class... Rest>
constexpr Policy policy_value(const V& first, const Rest&... rest) {
  if constexpr (role_of<V>() == R)
    return first;
  else
    return policy_value<R, Policy>(rest...);
}

template <class Value, class... Policies> constexpr bool is_one_of = (std::same_as<Value, Policies> || ...);

}  // namespace detail

/// Multi-head attention as a layer: its scalar, the machine it runs on, and policies in any order.
///
/// Policies  heads       MultiHead (default), GroupedQuery<n>, MultiQuery
///           mask        Full (default), Causal, SlidingWindow, …, or a functor
///           score       NoScore (default), SoftCap, Alibi, …, or a functor
///           sink        NoSink (default), Sink
///           norm        NoNorm (default), QkNorm
///           position    NoPosition (default), Rotary<…>
///           projection  FusedProjection (default), PerHeadProjection
///           concat      ConcatHeads (default), GatedHeads
///           output      LinearOutput (default), NoOutput
/// Values    policies with data take it from the constructor: layer({...}, SlidingWindow{.left = 255})
/// Threads   calls are const; one layer serves many threads, each with a Workspace of its own
/// Errors    ShapeError if the configuration does not fit together
///
///   mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = 512, .num_heads = 8});
///   layer.initialize(mha::XavierUniform{.seed = 1});
///   auto y = layer(x);  // (L, 512) → (L, 512)
template <class Scalar, class B = Cpu, class... Policies>
class MultiHeadAttention : public detail::LayerOf<Scalar, B, Policies...>::type {
  using Roles = detail::LayerOf<Scalar, B, Policies...>;

 public:
  template <class... Values>
  explicit MultiHeadAttention(const Config& config, const Values&... values)
      : Roles::type(config, detail::policy_value<Role::mask, typename Roles::MaskPolicy>(values...),
                    detail::policy_value<Role::score, typename Roles::ScorePolicy>(values...),
                    detail::policy_value<Role::sink, typename Roles::SinkPolicyOf>(values...),
                    detail::policy_value<Role::norm, typename Roles::NormPolicy>(values...),
                    detail::policy_value<Role::position, typename Roles::PositionPolicy>(values...)) {
    static_assert((detail::is_one_of<Values, Policies...> && ...),
                  "mha: the constructor got a policy value that the layer's type does not name "
                  "(see mha/layer/multi_head_attention.hpp)");
    static_assert(((detail::count_role<role_of<Values>(), Values...> <= 1) && ...),
                  "mha: the constructor got two values for one policy: keep one "
                  "(see mha/layer/multi_head_attention.hpp)");
  }

  using Roles::type::operator();
  /// An Eigen expression has no memory to read: layer((2 * x).eval()). Refused in one line, which names the type.
  template <class NoSequence>
  requires(!Sequence<NoSequence>) void operator()(const NoSequence&) const = delete;
};

/// A layer whose policies are deduced from values: make_attention<float>({...}, mha::mask([](…) { … })).
template <class Scalar, class B = Cpu, class... Values>
auto make_attention(const Config& config, const Values&... values) {
  return MultiHeadAttention<Scalar, B, Values...>(config, values...);
}

}  // namespace mha::inline v0
