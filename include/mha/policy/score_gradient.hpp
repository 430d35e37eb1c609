// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>

#include "score.hpp"

/// What of a score has a gradient of its own, and the score as a function of those variables.
namespace mha::inline MHA_NAMESPACE {

template <class B> struct AdditiveBias;  // in score/additive_bias.hpp

/// Which gradients of a score a backward pass computes, as a type: none. First and Second are those of the parts of a
/// Chain.
struct NoScoreGradients {
  static constexpr bool bias = false, parameters = false;
  using First = NoScoreGradients;
  using Second = NoScoreGradients;
};

namespace detail {

template <bool Bias, bool Parameters> struct WantedScoreGradients {
  static constexpr bool bias = Bias, parameters = Parameters;
  using First = WantedScoreGradients;
  using Second = WantedScoreGradients;
};
/// Of the numbers of a Chain's first score, and of its second.
template <bool Bias, bool OfFirst, bool OfSecond> struct WantedOfChain {
  static constexpr bool bias = Bias, parameters = OfFirst || OfSecond;
  using First = WantedScoreGradients<Bias, OfFirst>;
  using Second = WantedScoreGradients<Bias, OfSecond>;
};

/// Of these gradients those of a score's numbers.
template <class Wanted> struct OnlyParameters {
  static constexpr bool bias = false, parameters = Wanted::parameters;
  using First = OnlyParameters<typename Wanted::First>;
  using Second = OnlyParameters<typename Wanted::Second>;
};

/// F<X> for a floating-point X.
template <class S> struct ScoreTemplate { static constexpr bool exists = false; };
template <template <class> class F, std::floating_point X> struct ScoreTemplate<F<X>> {
  static constexpr bool exists = true;
  using Scalar = X;
  template <class U> using On = F<U>;
};

/// A span that kernels may index: std::span's members are the host's alone, and it does not become one.
template <class X> struct DeviceSpan {
  X* first;
  std::size_t count;
  MHA_HOST_DEVICE constexpr X& operator[](std::size_t i) const { return first[i]; }
  MHA_HOST_DEVICE constexpr X* data() const { return first; }
  MHA_HOST_DEVICE constexpr std::size_t size() const { return count; }
  MHA_HOST_DEVICE constexpr bool empty() const { return count == 0; }
};
template <class S, class Gradient>
concept AccumulatesIn = requires(const S& s, Gradient gradient, float x, Index i) {
  s.accumulate(gradient, x, x, i, i, i, i);
};
/// A score that accumulates in what kernels have for a span.
template <class S>
concept AccumulatesOnDevice = AccumulatesIn<S, DeviceSpan<double>>;
/// Whether a unit that nvcc compiles, where functions for kernels are the host's too, gives this score the span of
/// kernels everywhere: of std::span's members nvcc would warn, and of functions that are declared and never called.
template <class S>
concept KeepsToDeviceSpan = bool{MHA_NVCC} && AccumulatesOnDevice<S>;
template <class S>
concept HasNumbers = requires(const S& s) {
  std::span(s.numbers());
};
/// A score that adds to the gradients of its numbers by itself.
template <class S>
concept Accumulates =
    !declines_training<S>() && HasNumbers<S> && (KeepsToDeviceSpan<S> || AccumulatesIn<S, std::span<double>>);
/// What its accumulate() is given on the host.
template <class S, class X> constexpr auto span_for(X* first, std::size_t count) {
  if constexpr (KeepsToDeviceSpan<S>)
    return DeviceSpan<X>{first, count};
  else
    return std::span<X>(first, count);
}
/// Whether it would be one, if what it calls accumulate could be called so.
template <class S> constexpr bool almost_accumulates() {
  struct Named {
    int accumulate;
  };
  if constexpr (std::is_class_v<S> && !std::is_final_v<S> && !declines_training<S>() && !Accumulates<S>) {
    struct Both : S, Named {};
    return !requires { &Both::accumulate; };  // two of that name
  } else {
    return false;
  }
}

/// A score whose members are to be trained: a class template over its scalar that does not decline.
template <class S> constexpr bool asks_training() {
  if constexpr (ScoreTemplate<S>::exists && !std::is_empty_v<S>) return !declines_training<S>() && !Accumulates<S>;
  return false;
}

/// Whether all members of a trained score have its scalar: its size is the same multiple of the scalar's with every
/// scalar.
template <class S> constexpr bool has_scalars_only() {
  using Template = ScoreTemplate<S>;
  using X = typename Template::Scalar;
  using Twice = typename Template::template On<Dual<X, 1>>;
  using Thrice = typename Template::template On<Dual<X, 2>>;
  return std::is_trivially_copyable_v<S> && std::is_trivially_copyable_v<Twice> && sizeof(S) % sizeof(X) == 0 &&
         sizeof(Twice) == 2 * sizeof(S) && sizeof(Thrice) == 3 * sizeof(S);
}

template <class S> constexpr bool is_trained_template() {
  if constexpr (asks_training<S>()) return has_scalars_only<S>();
  return false;
}

/// A score of the library's own with numbers that are trained: parameters of them, and shifted(by), the score with each
/// of them changed by a dual number.
template <class S>
concept HasParameters = requires {
  { S::parameters } -> std::convertible_to<int>;
};

/// A score of the library's own that tells its gradients from the sums of its slots.
template <class S>
concept LibraryTrained = requires {
  requires S::trained;
};

template <class S> constexpr bool is_bias = false;
template <class B> constexpr bool is_bias<AdditiveBias<B>> = true;
template <class S> constexpr bool is_chain = false;
template <class A, class B> constexpr bool is_chain<Chain<A, B>> = true;

/// Whether a score has numbers() and nothing by which they are trained, and does not decline that.
template <class S> constexpr bool has_numbers_alone() {
  if constexpr (is_chain<S>)
    return has_numbers_alone<decltype(S::first)>() || has_numbers_alone<decltype(S::second)>();
  else if constexpr (LibraryTrained<S> || Accumulates<S> || asks_training<S>() || declines_training<S>() ||
                     almost_accumulates<S>())
    return false;
  else
    return requires(const S& s) { std::span(s.numbers()); };
}

/// Numbers of a score, as it is for one head, whose gradients are sums over all pairs.
template <class Wanted, class S> struct Slots {
  static constexpr int count() {
    if constexpr (!Wanted::parameters)
      return 0;
    else if constexpr (HasParameters<S>)
      return S::parameters;
    else if constexpr (is_trained_template<S>())
      return static_cast<int>(sizeof(S) / sizeof(typename ScoreTemplate<S>::Scalar));
    else
      return 0;
  }
};
template <class Wanted, class A, class B> struct Slots<Wanted, Chain<A, B>> {
  static constexpr int count() {
    return Slots<typename Wanted::First, A>::count() + Slots<typename Wanted::Second, B>::count();
  }
};

/// A score of the library's own that adds an element of a table, of which each pair has one.
template <class S>
concept AddsTable = is_bias<S> || requires {
  requires S::adds_table;
};

/// Tables of a score, as it is for one head, that are added to the logits and have gradients.
template <class Wanted, class S> struct Tables {
  static constexpr int count() {
    if constexpr (is_bias<S>)
      return Wanted::bias ? 1 : 0;
    else
      return AddsTable<S> && Wanted::parameters ? 1 : 0;
  }
};
template <class Wanted, class A, class B> struct Tables<Wanted, Chain<A, B>> {
  static constexpr int count() {
    return Tables<typename Wanted::First, A>::count() + Tables<typename Wanted::Second, B>::count();
  }
};

/// Scores that accumulate in a score, as it is for one head.
template <class Wanted, class S> struct Accumulating {
  static constexpr int count() { return Wanted::parameters && Accumulates<S> ? 1 : 0; }
};
template <class Wanted, class A, class B> struct Accumulating<Wanted, Chain<A, B>> {
  static constexpr int count() {
    return Accumulating<typename Wanted::First, A>::count() + Accumulating<typename Wanted::Second, B>::count();
  }
};
/// f(each of them).
template <class Wanted, class S, class F> void for_each_accumulating(const S& score, const F& f) {
  if constexpr (is_chain<S>) {
    for_each_accumulating<typename Wanted::First>(score.first, f);
    for_each_accumulating<typename Wanted::Second>(score.second, f);
  } else if constexpr (Accumulating<Wanted, S>::count() > 0) {
    f(score);
  }
}
/// How many numbers they have together.
template <class Wanted, class S> int accumulated_numbers(const S& score) {
  int n = 0;
  for_each_accumulating<Wanted>(score, [&](const auto& part) { n += static_cast<int>(std::size(part.numbers())); });
  return n;
}
/// Whether all of them do so in kernels too.
template <class Wanted, class S> constexpr bool all_accumulate_on_device() {
  if constexpr (is_chain<S>)
    return all_accumulate_on_device<typename Wanted::First, decltype(S::first)>() &&
           all_accumulate_on_device<typename Wanted::Second, decltype(S::second)>();
  else
    return Accumulating<Wanted, S>::count() == 0 || AccumulatesOnDevice<S>;
}
// As numbers: nvcc lets a kernel call no constexpr function of the host's, not even in a constant.
template <class Wanted, class S> inline constexpr int slot_count = Slots<Wanted, S>::count();
template <class Wanted, class S> inline constexpr int table_count = Tables<Wanted, S>::count();
template <class Wanted, class S> inline constexpr int accumulating_count = Accumulating<Wanted, S>::count();

/// Number `Own` of them.
template <class Wanted, int Own, class S> MHA_HOST_DEVICE constexpr const auto& accumulating_part(const S& score) {
  if constexpr (is_chain<S>) {
    constexpr int before = accumulating_count<typename Wanted::First, decltype(S::first)>;
    if constexpr (Own < before)
      return accumulating_part<typename Wanted::First, Own>(score.first);
    else
      return accumulating_part<typename Wanted::Second, Own - before>(score.second);
  } else {
    return score;
  }
}

template <class S>
concept HasOwnDerivative = requires(const S& s, float x, Index i) {
  s.derivative(x, x, i, i, i, i);
};

// Lifted scores take dual numbers alone.

/// A score that adds to the logit, its own contribution being a variable.
template <class S> struct WithVariable {
  static constexpr Role role = Role::score;
  S score;
  int variable;
  template <class D> MHA_HOST_DEVICE D operator()(const D& s, Index b, Index h, Index q, Index k) const {
    D t = score(s, b, h, q, k);
    using T = std::remove_cvref_t<decltype(t.value)>;
    if (variable > 0) t.derivative[variable] += T(1);
    return t;
  }
};

/// A score whose own result is a variable, and which tells where it was asked.
template <class S, class T> struct WithInput {
  static constexpr Role role = Role::score;
  S score;
  int variable;
  T* input;
  template <class D> MHA_HOST_DEVICE D operator()(const D& s, Index b, Index h, Index q, Index k) const {
    *input = s.value;
    D t = score(s, b, h, q, k);
    if (variable > 0) t.derivative[variable] += T(1);
    return t;
  }
};

/// A score that knows its own derivative.
template <class S> struct WithOwnDerivative {
  static constexpr Role role = Role::score;
  S score;
  template <class D> MHA_HOST_DEVICE D operator()(const D& s, Index b, Index h, Index q, Index k) const {
    using T = std::remove_cvref_t<decltype(s.value)>;
    const T t = static_cast<T>(score(s.value, b, h, q, k));
    return s.chain(t, static_cast<T>(score.derivative(s.value, t, b, h, q, k)));
  }
};

/// A trained template as it is, which tells its value and the derivative by the logit, and on dual numbers, which tells
/// the derivatives by its members: its value is rounded as where none are asked for.
template <class Plain, class Shifted> struct WithMembers {
  static constexpr Role role = Role::score;
  Plain plain;
  Shifted shifted;
  template <class D> MHA_HOST_DEVICE D operator()(const D& s, Index b, Index h, Index q, Index k) const {
    using T = std::remove_cvref_t<decltype(s.value)>;
    D t = plain(s, b, h, q, k);
    const D by_members = shifted(D(s.value), b, h, q, k);
    constexpr int variables = static_cast<int>(sizeof(D::derivative) / sizeof(T));
    for (int i = 0; i < variables; ++i) t.derivative[i] += by_members.derivative[i];
    return t;
  }
};

/// N numbers, an array that kernels may index.
template <class D, int N> struct Numbers {
  D of[std::size_t{N}];
  MHA_HOST_DEVICE constexpr D& operator[](int i) { return of[i]; }
  MHA_HOST_DEVICE constexpr const D& operator[](int i) const { return of[i]; }
};

/// The members of a trained template.
template <class S> constexpr auto members_of(const S& score) {
  using X = typename ScoreTemplate<S>::Scalar;
  return std::bit_cast<std::array<X, sizeof(S) / sizeof(X)>>(score);
}

/// The trained template with members that are changed by these dual numbers.
template <class D, class S, int N> MHA_HOST_DEVICE auto shifted_members(const S& score, const Numbers<D, N>& by) {
  const auto given = __builtin_bit_cast(Numbers<typename ScoreTemplate<S>::Scalar, N>, score);
  Numbers<D, N> members{};
  for (int i = 0; i < N; ++i) members[i] = by[i] + given[i];
  return __builtin_bit_cast(typename ScoreTemplate<S>::template On<D>, members);
}

/// A score, as it is for one head, as a function of a D whose variable 0 is the logit. Of the slots, those from
/// `first_slot` on are the variables from 1 on, and the tables those from `first_table` on; what lies outside of D's
/// variables is constant. The results of scores that accumulate are the variables from `first_input` on, and what they
/// were asked about goes to `inputs`.
template <class Wanted, class D, class S>
MHA_HOST_DEVICE auto lifted(const S& score, [[maybe_unused]] int first_slot, [[maybe_unused]] int first_table,
                            [[maybe_unused]] int first_input = 0,
                            [[maybe_unused]] std::remove_cvref_t<decltype(D::value)>* inputs = nullptr) {
  constexpr int variables = static_cast<int>(sizeof(D::derivative) / sizeof(D::value));
  constexpr int slots = slot_count<Wanted, S>;
  if constexpr (is_chain<S>) {
    using First = typename Wanted::First;
    constexpr int before = accumulating_count<First, decltype(score.first)>;
    const auto a = lifted<First, D>(score.first, first_slot, first_table, first_input, inputs);
    const auto b =
        lifted<typename Wanted::Second, D>(score.second, first_slot + slot_count<First, decltype(score.first)>,
                                           first_table + table_count<First, decltype(score.first)>,
                                           first_input + before, before > 0 ? inputs + before : inputs);
    return Chain<std::remove_const_t<decltype(a)>, std::remove_const_t<decltype(b)>>{a, b};
  } else if constexpr (accumulating_count<Wanted, S> > 0) {
    const auto plain = lifted<NoScoreGradients, D>(score, 0, 0);
    using T = std::remove_cvref_t<decltype(D::value)>;
    return WithInput<std::remove_const_t<decltype(plain)>, T>{
        plain, first_input > 0 && first_input < variables ? first_input : 0, inputs};
  } else if constexpr (slots > 0) {
    using T = std::remove_cvref_t<decltype(D::value)>;
    Numbers<D, slots> by{};
    for (int i = 0; i < slots; ++i)
      if (first_slot + i > 0 && first_slot + i < variables) by[i] = D::variable(T(0), first_slot + i);
    if constexpr (HasParameters<S>) {
      return score.shifted(by);
    } else if constexpr (HasOwnDerivative<S> || sizeof(typename ScoreTemplate<S>::Scalar) < sizeof(T)) {
      const auto plain = lifted<NoScoreGradients, D>(score, 0, 0);
      const auto shifted = shifted_members(score, by);
      return WithMembers<std::remove_const_t<decltype(plain)>, std::remove_const_t<decltype(shifted)>>{plain, shifted};
    } else {
      return shifted_members(score, by);
    }
  } else if constexpr (table_count<Wanted, S> > 0) {
    return WithVariable<S>{score, first_table > 0 && first_table < variables ? first_table : 0};
  } else if constexpr (HasOwnDerivative<S>) {
    return WithOwnDerivative<S>{score};
  } else {
    check_derivative<TakesLogit<S, D>>();
    return score;
  }
}

/// Where the gradients of a table go that is added to the logits: += at data[b, h, q − origin, k], or = if every
/// element has one pair at most.
///
/// Shapes    strides of (B, Hq, Lq, Lk), 0 of an axis that the table repeats
template <class A, class Sum> struct TableGradient {
  Sum* sums = nullptr;
  A* elements = nullptr;
  std::ptrdiff_t stride[4] = {};
  Origins origin{};
  Index least = 0;           ///< of sums by distance k − q: the first one,
  std::ptrdiff_t count = 0;  ///< and how many

  std::ptrdiff_t at(Index b, Index h, Index q, Index k) const {
    return b * stride[0] + h * stride[1] + std::ptrdiff_t{q - origin[b]} * stride[2] + k * stride[3];
  }
  void add(std::ptrdiff_t at, const A& x) const {
    if (elements != nullptr)
      elements[at] = x;
    else
      sums[at] += Sum(x);
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
