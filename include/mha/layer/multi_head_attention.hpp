// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../backend/default.hpp"
#include "../block/initialize.hpp"
#include "../block/rows.hpp"
#include "../call_backend.hpp"
#include "../core/check.hpp"
#include "layer.hpp"
#include "policies.hpp"
#include "projecting_layer.hpp"
#include "recording_layer.hpp"
#include "trainable_layer.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

template <class Scalar, class B, class... P> struct LayerOf {
  static constexpr bool defined = is_defined<B> && !std::same_as<B, NoBackend<true>>;
  static constexpr bool backend = Backend<B> && !std::same_as<B, NoBackend<false>>;
  using On = OrNoBackend<B>;
  using ByRole = PoliciesByRole<P...>;
  using type = TrainableLayer<Scalar, On, ByRole>;
};

/// Whether a call is given a source that a layer of this scalar does not read.
template <class Scalar, class... Extra>
constexpr bool has_foreign_source = ((SourceArgument<Extra> && !SourceOf<Extra, Scalar>) || ...);

/// The sentences for what a layer cannot be called on: x, or the memory among what follows it.
template <class Scalar, class X, class... Extra> Refused refuse_sequence() {
  static_assert(Sequence<X>,
                "mha: a layer takes x with 2 or 3 axes: an Eigen matrix, an mha::Tensor or a view of a pointer, "
                "mha::view(p, L, E); an Eigen expression is computed first, layer((2 * x).eval()) "
                "(see mha/layer/multi_head_attention.hpp)");
  constexpr bool misplaced = SequenceOf<X, Scalar> && misplaced_memory<Extra...>;
  static_assert(
      !misplaced,
      "mha: the memory of cross-attention comes next to x, layer(x, memory, mask), and a result is written by "
      "mha::into(y) (see mha/layer/multi_head_attention.hpp)");
  constexpr bool stored = SequenceOf<X, Scalar> && has_foreign_source<Scalar, Extra...>;
  static_assert(!stored || misplaced,
                "mha: a source stores keys of the layer's scalar or of another with the same accumulator: float, half, "
                "bfloat16 and scaled_int8 go together, double goes with itself (see mha/cache/kv_source.hpp)");
  static_assert(!Sequence<X> || misplaced || stored,
                "mha: the layer's scalar and the input's differ: convert the input, such as layer(x.cast<T>().eval()) "
                "for a layer of T (see mha/layer/multi_head_attention.hpp)");
  return {};
}

template <class Value, class... Policies> constexpr bool is_one_of = (std::same_as<Value, Policies> || ...);

/// The types of a list that are no backends, as the policies of a layer.
template <class... P> struct PolicyList;
template <class List, class... Values> struct WithoutBackends { using type = List; };
template <class... P, class V, class... Rest>
struct WithoutBackends<PolicyList<P...>, V, Rest...>
    : WithoutBackends<std::conditional_t<BackendArgument<V>, PolicyList<P...>, PolicyList<P..., V>>, Rest...> {};

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
///           dropout     NoDropout (default), Dropout, of calls with a DropoutSeed
/// Values    policies with data, and the backend, take it from the constructor in any order:
///           layer({...}, SlidingWindow{.left = 255}, Cpu(ThreadPool(2)))
/// Threads   calls are const; one layer serves many threads, each with a Workspace of its own
/// Errors    ShapeError if the configuration does not fit together, or a number of a policy is out of its range
///
///   mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = 512, .num_heads = 8});
///   layer.initialize(mha::XavierUniform{.seed = 1});
///   auto y = layer(x);  // (L, 512) → (L, 512)
template <class Scalar, class B = Cpu, class... Policies>
class MultiHeadAttention : public detail::LayerOf<Scalar, B, Policies...>::type {
  using Chosen = detail::LayerOf<Scalar, B, Policies...>;
  template <class X, class... Extra>
  static constexpr bool refuses =
      !SequenceOf<X, Scalar> || detail::has_foreign_memory<typename Chosen::type::KeyValues, Extra...> ||
      detail::misplaced_memory<Extra...>;

 public:
  template <class... Values>
  explicit MultiHeadAttention(const Config& config, const Values&... values)
      : Chosen::type(config, Chosen::ByRole::from(values...),
                     detail::given_or_default<typename Chosen::On>(values...)) {
    static_assert(((!detail::BackendArgument<Values> || std::same_as<Values, B>)&&...),
                  "mha: the constructor got a backend of another type than the layer's: write that type, "
                  "MultiHeadAttention<float, mha::CpuWith<mha::Serial>> (see mha/layer/multi_head_attention.hpp)");
    static_assert(((detail::BackendArgument<Values> || detail::is_one_of<Values, Policies...>)&&...),
                  "mha: the constructor got a policy value that the layer's type does not name "
                  "(see mha/layer/multi_head_attention.hpp)");
    static_assert(((detail::count_role<role_of<Values>(), Values...> <= 1) && ...),
                  "mha: the constructor got two values for one policy: keep one "
                  "(see mha/layer/multi_head_attention.hpp)");
  }

  // Refused in one sentence.
  using Chosen::type::operator();
  template <class X, class... Extra>
  requires(refuses<X, Extra...>) detail::Refused operator()(X&&, Extra&&...) const {
    return detail::refuse_sequence<Scalar, X, Extra...>();
  }
  using Chosen::type::attention_weights;
  template <class X, class... Extra>
  requires(refuses<X, Extra...>) detail::Refused attention_weights(X&&, Extra&&...)
  const { return detail::refuse_sequence<Scalar, X, Extra...>(); }
  using Chosen::type::mean_attention_weights;
  template <class X, class... Extra>
  requires(refuses<X, Extra...>) detail::Refused mean_attention_weights(X&&, Extra&&...)
  const { return detail::refuse_sequence<Scalar, X, Extra...>(); }
  using Chosen::type::project_memory;
  template <class Memory, class... Extra>
  requires(!SequenceOf<Memory, Scalar> ||
           (detail::has_value_rows<Memory, Extra...> &&
            detail::has_foreign_memory<typename Chosen::type::KeyValues, Extra...>)) detail::Refused
      project_memory(Memory&&, Extra&&...)
  const { return detail::refuse_sequence<Scalar, Memory>(); }
  using Chosen::type::borrow;
  template <Backend OtherBackend, class OtherPolicies>
  void borrow(const LayerWeights<Scalar, OtherBackend, OtherPolicies>&&) {
    static_assert(detail::valid<OtherPolicies>,
                  "mha: borrow() from a temporary layer, whose weights would be gone before this layer reads them: "
                  "name that layer and keep it as long as this one (see mha/layer/multi_head_attention.hpp)");
  }
  template <class Other, Backend OtherBackend, class OtherPolicies>
  requires(!std::same_as<Other, Scalar>) void borrow(const LayerWeights<Other, OtherBackend, OtherPolicies>&) {
    static_assert(detail::valid<Other>,
                  "mha: borrow() of a layer of another scalar: a layer of float or double takes the weights of one of "
                  "half or bfloat16 by layer.borrow(other.parameters()); else copy them in update() "
                  "(see mha/layer/multi_head_attention.hpp)");
  }

  // Last, because clang skips what follows a failed assertion.
  static_assert(
      Chosen::defined,
      "mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic, <mha/cuda.cuh> for Cuda, "
      "<mha/mha.hpp> for Cpu, or name mha::EigenCpu, which <mha/eigen.hpp> has (see mha/backend/default.hpp)");
  static_assert(Chosen::backend || !Chosen::defined,
                "mha: the second template argument is no backend; one comes before the policies: "
                "MultiHeadAttention<float, mha::Cpu, mha::Causal> (see mha/backend/backend.hpp)");
  static_assert((detail::check_layer_policies<Policies...>(), true));
};

namespace detail {

template <class... P> struct PolicyList {
  template <class Scalar, class B> using Layer = MultiHeadAttention<Scalar, B, P...>;
};

}  // namespace detail

/// A layer whose policies, and backend, are deduced from values: make_attention<float>({...}, mha::mask([](…) { … })).
template <class Scalar, class OnBackend = void, class... Values>
[[nodiscard]] auto make_attention(const Config& config, const Values&... values) {
  using B = detail::CallBackend<OnBackend, Cpu, Values...>;
  using Policies = typename detail::WithoutBackends<detail::PolicyList<>, Values...>::type;
  return typename Policies::template Layer<Scalar, B>(config, values...);
}

}  // namespace mha::inline MHA_NAMESPACE
