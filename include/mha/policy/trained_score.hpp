// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "../core/check.hpp"
#include "../core/math.hpp"
#include "../core/overlap.hpp"
#include "../core/scalar.hpp"
#include "score.hpp"
#include "score_gradient.hpp"

/// What of a score is trained, and its numbers.
namespace mha::inline MHA_NAMESPACE::detail {

/// What of a score is trained, NoScore if nothing is.
template <class S> constexpr auto trained(const S& score) {
  if constexpr (is_chain<S>)
    return chain(trained(score.first), trained(score.second));
  else if constexpr (is_trained_template<S>() || LibraryTrained<S> || Accumulates<S>)
    return score;
  else
    return NoScore{};
}
template <class S> using Trained = decltype(trained(std::declval<const S&>()));

/// What a score is on the host: of one that on_device() has made, what that was made of.
template <class S> struct HostScore { using type = S; };
template <class S>
requires requires { typename S::OnHost; }
struct HostScore<S> {
  using type = typename S::OnHost;
};
template <class A, class B> struct HostScore<Chain<A, B>> {
  using type = Chain<typename HostScore<A>::type, typename HostScore<B>::type>;
};
template <class S> using ScoreOnHost = typename HostScore<S>::type;
template <class S> constexpr decltype(auto) on_host(const S& score) {
  if constexpr (std::is_same_v<ScoreOnHost<S>, S>)
    return (score);
  else if constexpr (is_chain<S>)
    return ScoreOnHost<S>{on_host(score.first), on_host(score.second)};
  else
    return score.on_host();
}

/// Whether gradients of the score's numbers are computed without being asked for.
template <class S> constexpr bool trains_unasked() {
  if constexpr (is_chain<S>)
    return trains_unasked<decltype(S::first)>() || trains_unasked<decltype(S::second)>();
  else if constexpr (requires { S::trained_if_asked; })
    return false;
  else
    return is_trained_template<S>() || LibraryTrained<S> || Accumulates<S>;
}

/// Whether a layer of T has gradients of the numbers of its score S: of those that attention_backward() returns too.
template <class T, class S>
constexpr bool trains_score = Arithmetic<Accumulator<T>>&& trains_unasked<S>() && std::is_copy_assignable_v<S>;

/// step(numbers, the same of the other) as spans, for each part of a score that is trained and the same part of another
/// Trained<S>, in the order written. The score may be const.
template <class S, class G, class F> void for_each_numbers(S& score, const G& other, F&& step) {
  using Own = std::remove_const_t<S>;
  if constexpr (is_chain<Own>) {
    using First = Trained<decltype(Own::first)>;
    using Second = Trained<decltype(Own::second)>;
    if constexpr (std::is_same_v<First, NoScore>) {
      for_each_numbers(score.second, other, step);
    } else if constexpr (std::is_same_v<Second, NoScore>) {
      for_each_numbers(score.first, other, step);
    } else {
      for_each_numbers(score.first, other.first, step);
      for_each_numbers(score.second, other.second, step);
    }
  } else if constexpr (is_trained_template<Own>()) {
    using X = typename ScoreTemplate<Own>::Scalar;
    auto members = members_of(score);
    const auto others = members_of(other);
    if constexpr (std::is_const_v<S>) {
      step(std::span<const X>(members), std::span<const X>(others));
    } else {
      step(std::span<X>(members), std::span<const X>(others));
      score = std::bit_cast<Own>(members);
    }
  } else if constexpr (LibraryTrained<Own> || Accumulates<Own>) {
    step(std::span(score.numbers()), std::span(other.numbers()));
  }
}

/// A copy of a score, which gradients are written to, has numbers of its own: of the parts that tell their gradients.
///
/// Errors    ShapeError; nothing has been written
template <class Wanted, class S> void require_own_numbers(const char* call, const S& score) {
  for_each_accumulating<Wanted>(score, [call](const auto& part) {
    auto copy = part;
    const auto numbers = std::span(part.numbers());
    const auto of_copy = std::span(copy.numbers());
    const auto at = [](const auto& span) { return footprint(span.data(), static_cast<std::ptrdiff_t>(span.size())); };
    require(!share_bytes(at(numbers), at(of_copy)), call, ": a copy of the score shares the memory of its ",
            numbers.size(), " numbers(), expected a copy with numbers of its own");
  });
}

/// All numbers of a trained score ← 0.
template <class G> void clear_numbers(G& score) {
  for_each_numbers(score, std::as_const(score),
                   [](const auto& numbers, const auto&) { std::fill(numbers.begin(), numbers.end(), 0.f); });
}
template <class G> G without_numbers(G score) {
  clear_numbers(score);
  return score;
}

/// Whether what is trained of a score is what its score for one head has: the chain rule does not pass through
/// prepared() and at_head().
template <class Wanted, class S, class Head> constexpr bool is_trained_as_given() {
  if constexpr (is_chain<S> && is_chain<Head>)
    return is_trained_as_given<typename Wanted::First, decltype(S::first), decltype(Head::first)>() &&
           is_trained_as_given<typename Wanted::Second, decltype(S::second), decltype(Head::second)>();
  else if constexpr (!Wanted::parameters || LibraryTrained<S>)
    return true;
  else if constexpr (is_trained_template<S>() || Accumulates<S>)
    return !requires(const S& s, const CallShape& shape) { s.prepared(shape); }
  &&!requires(const S& s, Index i) { s.at_head(i, i); };
  else return !is_trained_template<Head>() && !Accumulates<Head>;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
