// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../block/cost.hpp"
#include "../policy/call_shape.hpp"
#include "../policy/dropout.hpp"
#include "../policy/mask.hpp"
#include "../policy/role.hpp"
#include "../policy/score.hpp"
#include "../policy/trained_score.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "gradients.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// A policy or a composition in words: "Causal and not (Padding or functor)", "SoftCap, then Alibi".
template <class P> struct InWords {
  static std::string text() { return policy_name<P>(); }
  static std::string part() { return text(); }  ///< as it stands within a composition
};
template <class A, class B> struct InWords<And<A, B>> {
  static std::string text() { return InWords<A>::part() + " and " + InWords<B>::part(); }
  static std::string part() { return text(); }
};
template <class A, class B> struct InWords<Or<A, B>> {
  static std::string text() { return InWords<A>::part() + " or " + InWords<B>::part(); }
  static std::string part() { return "(" + text() + ")"; }
};
template <class A> struct InWords<Not<A>> {
  static std::string text() { return "not " + InWords<A>::part(); }
  static std::string part() { return text(); }
};
template <class A, class B> struct InWords<Not<And<A, B>>> {
  static std::string text() { return "not (" + InWords<And<A, B>>::text() + ")"; }
  static std::string part() { return text(); }
};
template <class A, class B> struct InWords<Chain<A, B>> {
  static std::string text() { return InWords<A>::text() + ", then " + InWords<B>::text(); }
};

inline std::string heads_of(const Config& c) {
  if (c.num_heads == 1) return "1 query head with 1 key/value head";
  const std::string own = std::to_string(c.num_heads) + " query heads";
  if (c.num_kv_heads == c.num_heads) return own + " with a key/value head each";
  if (c.num_kv_heads == 1) return own + " share 1 key/value head";
  return own + " share " + std::to_string(c.num_kv_heads) + " key/value heads";
}

inline std::string visible_in_words(double visible, double pairs) {
  return "visible:     " + count_in_words(visible) + " of " + count_in_words(pairs) + " pairs of each head";
}

inline std::string biases_of(const Config& c, bool has_output) {
  std::string list;
  for (const auto& [name, has] :
       {std::pair{"query", c.has_query_bias()}, std::pair{"key", c.has_key_bias()},
        std::pair{"value", c.has_value_bias()}, std::pair{"output", has_output && c.has_output_bias()}})
    if (has) list += (list.empty() ? "" : ", ") + std::string(name);
  return list.empty() ? "none" : list;
}

/// Whether the score, or one of a chain, would be trained if it could be assigned. (What else it lacks, compilers see
/// differently: for clang 14 a constant dual number is not trivially copyable.)
template <class S> constexpr bool asks_but_is_constant() {
  if constexpr (is_chain<S>)
    return asks_but_is_constant<decltype(S::first)>() || asks_but_is_constant<decltype(S::second)>();
  else
    return asks_training<S>() && !std::is_copy_assignable_v<S>;
}

/// What of a layer's score its backward pass trains on B, a line; none of a score without data.
template <class B, class T, class S> std::string training_in_words(const S& score) {
  const std::string line = "trained:     ";
  if constexpr (std::is_empty_v<S>) {
    return "";
  } else if constexpr (trains_on<B, T, S>) {
    std::size_t n = 0;
    for_each_numbers(score, trained(score), [&](const auto& numbers, const auto&) { n += numbers.size(); });
    return line + std::to_string(n) + " numbers of the score\n";
  } else {
    constexpr const char* why =
        trains_score<T, S> && has_score_gradients<B> ? "accumulate() takes no span of a device"
        : trains_score<T, S>                         ? "this backend has no gradients of scores"
        : asks_but_is_constant<S>()                  ? "a score of this type cannot be assigned"
        : !std::is_same_v<Trained<S>, NoScore>       ? "attention_backward() has their gradients if it is asked"
        : declines_training<S>()                     ? "it declines to be trained"
                                 : "one that is trained is a class template over its scalar alone, or has accumulate()";
    return line + "none of the score: " + why + " (see mha/policy/score.hpp)\n";
  }
}

/// The backward pass of a layer's call, one fact a line; M as for explain_layer.
template <class B, class T, class M, class Score>
std::string explain_layer_backward(const BackwardCost& c, const Score& score, double pairs) {
  return "mask:        " + InWords<M>::text() +        //
         "\nscore:       " + InWords<Score>::text() +  //
         "\n" + visible_in_words(c.visible_pairs, pairs) + "\n" + backward_in_words("output:      ", c.output) +
         backward_in_words("attention:   ", c.score + c.value) + backward_in_words("projections: ", c.projection) +
         training_in_words<B, T>(score) + backward_memory_in_words(c.tape_bytes, c.scratch_bytes);
}

/// What a call is beside its sizes. Of a step of a cache: that cache in words, else "", and the pairs of all sequences.
struct CallInWords {
  std::string weights;  ///< begins with their scalar
  std::string cache;
  double pairs;
};

/// What a backend says of a call whose keys and values are stored as Stored.
template <class T, class Stored, class B> std::string explain_kernel(const B& backend, const AttendPlan& plan) {
  if constexpr (requires { backend.template explain<T, Stored>(plan); })
    return backend.template explain<T, Stored>(plan);
  else
    return backend.template explain<T>(plan);
}

/// What explain() says of how positions enter.
template <class Position> std::string position_in_words(const Position& position) {
  if constexpr (requires { position.in_words(); })
    return position.in_words();
  else
    return policy_name<Position>();
}

/// The facts of a layer's call, one a line. M is the layer's mask with those of the call.
template <class T, class M, class Policies, class Stored = T, Backend B>
std::string explain_layer(const B& backend, const Config& c, const typename Policies::Position& position,
                          const Cost& cost, CallShape shape, const CallInWords& call) {
  const auto n = [](auto x) { return count_in_words(x); };
  const auto kernel = [&](Index queries) {
    shape.queries = queries;
    AttendPlan plan{shape, c.num_kv_heads, c.head_dim, c.value_dim};
    const std::string text = explain_kernel<T, Stored>(backend, plan);
    if (std::same_as<typename Policies::Dropout, NoDropout>) return text;
    plan.drops = true;
    const std::string dropping = explain_kernel<T, Stored>(backend, plan);
    return dropping == text ? text : text + "\nkernel:      with a DropoutSeed: " + dropping;
  };
  std::string kernels = "\nkernel:      " + kernel(shape.queries);
  // Of a device the backend itself says what sequences of few rows get.
  if (const Index most = shape.queries, fewest = shape.fewest_queries;
      computes_on_host<B> && 0 < fewest && fewest < most) {
    kernels = "\nkernel:      of " + n(most) + " rows: " + kernel(most);
    kernels += "\nkernel:      of " + n(fewest) + (fewest == 1 ? " row: " : " rows: ") + kernel(fewest);
  }
  std::string list;
  for (const std::string& policy :
       {std::string(Policies::Projection::name), std::string(Policies::Norm::name), position_in_words(position),
        std::string(Policies::Concat::name), std::string(Policies::Output::name)})
    list += (list.empty() ? "" : ", ") + policy;
  if (!std::same_as<typename Policies::Dropout, NoDropout>) list += ", " + std::string(Policies::Dropout::name);
  return "heads:       " + heads_of(c) + ", head_dim " + n(c.head_dim) + ", value_dim " + n(c.value_dim) +  //
         "\nweights:     " + n(cost.parameters()) + " " + call.weights +                                    //
         "\nbiases:      " + biases_of(c, Policies::Output::has_weights) +                                  //
         "\nmask:        " + InWords<M>::text() +                                                           //
         "\nscore:       " + InWords<typename Policies::Score>::text() +                                    //
         "\nsink:        " + policy_name<typename Policies::Sink>() +                                       //
         "\npolicies:    " + list +                                                                         //
         stage_in_words("\nprojections: ", cost.projection.flop, cost.projection.bytes) +                   //
         stage_in_words("\nattention:   ", cost.attention_flop(), cost.score.bytes + cost.value.bytes) +    //
         "\n" + visible_in_words(cost.visible_pairs, call.pairs) +                                          //
         stage_in_words("\noutput:      ", cost.output.flop, cost.output.bytes) +                           //
         (call.cache.empty() ? "" : "\ncache:       " + call.cache) + kernels +                             //
         "\nworkspace:   " + n(cost.activation_elements * sizeof(T)) + " bytes for Q, K, V and the heads\n";
}

}  // namespace mha::inline MHA_NAMESPACE::detail
