// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backward.hpp"
#include "core/scalar.hpp"
#include "core/view.hpp"
#include "policy/call_shape.hpp"
#include "policy/score/relative_bias.hpp"
#include "policy/score_gradient.hpp"
#include "policy/trained_score.hpp"
#include "score_gradients.hpp"

/// The gradients of a score's own numbers on a backend that sums them itself, in memory of its own.
namespace mha::inline MHA_NAMESPACE::detail {

/// A table, rounded once; `adds`: to what is there.
///
/// Shapes    from as to, row-major; rows are those of the first three axes
template <class A, class E> struct RoundedTable {
  std::ptrdiff_t rows;
  Index columns, cost;
  const A* from;
  TensorView<E, 4> to;
  bool adds = false;
  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index k) const {
    const std::ptrdiff_t head = row / to.extent[2];
    E& x = to(static_cast<Index>(head / to.extent[1]), static_cast<Index>(head % to.extent[1]),
              static_cast<Index>(row % to.extent[2]), k);
    const A& sum = from[row * columns + k];
    x = static_cast<E>(adds ? static_cast<A>(x) + sum : sum);
  }
};

/// As ScoreGradientSums, of a backend with `sums_scores`. S is the score on the host, which outlives this, `Head` what
/// the backend has for a head.
template <class A, class Wanted, class Head, class S, class B> class DeviceScoreGradients {
  using Numbers = OnlyParameters<Wanted>;
  using Sum = LongSum<A>;
  static constexpr int by_duals = Slots<Numbers, Head>::count();
  static_assert(all_accumulate_on_device<Numbers, S>(),
                "mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a score is given a span of the device's "
                "own: make the type of gradient a template parameter; or leave out ScoreGradient, and call "
                "attention_backward_into(), which trains no score unasked (see mha/policy/score.hpp)");
  static_assert(check_score_gradients<A, Wanted, S, Head, Numbers>());

 public:
  /// Whether store() waits for the sums of a score's numbers.
  static constexpr bool waits =
      Slots<Numbers, Head>::count() + Tables<Numbers, Head>::count() + Accumulating<Numbers, S>::count() > 0;

  /// Checks the call's BiasGradient, and takes the memory of all sums.
  template <class Frame, class... Extra>
  DeviceScoreGradients(const char* call, const B& backend, const S& score, const CallShape& shape, Frame& frame,
                       const Extra&... extra)
      : score_(score), shape_(shape) {
    if constexpr (Wanted::bias && count_biases<S> == 1) {
      const auto& given = given_bias_gradient(extra...);
      require_bias_gradient(call, bias_of(score).bias, given.to);
      require_reachable(backend, call, "BiasGradient", given.to);
      place_bias(given, frame);
    }
    require_own_numbers<Numbers>(call, score);
    to.count = by_duals + accumulated_numbers<Numbers>(score);
    slots_ = heads() * static_cast<std::size_t>(to.count);
    if (slots_ > 0) to.slots = frame.template take<Sum>(slots_);
    auto* next = to.tables;
    place_tables<Numbers>(score, next, frame);
  }

  /// Where the call adds, which the backend clears.
  const ScoreGradientsTo<A>& cleared() const { return to; }
  /// The gradients to where the call was told. Waits for those of a score's numbers, which the host has.
  template <class... Extra>
  void store(const B& backend, typename B::Workspace& workspace, const Extra&... extra) const {
    store_bias(backend, workspace, extra...);
    if constexpr (Wanted::parameters)
      with_sums_on_host(backend, workspace,
                        [&](const ScoreSums<A>& sums) { store_score_gradients<Numbers>(score_, sums, extra...); });
  }
  /// That of the bias alone, which the backend has.
  template <class... Extra>
  void store_bias([[maybe_unused]] const B& backend, [[maybe_unused]] typename B::Workspace& workspace,
                  const Extra&... extra) const {
    if constexpr (Wanted::bias && count_biases<S> == 1) {
      const auto& given = given_bias_gradient(extra...);
      if (to.bias.elements == nullptr || holds_sums(given)) return;
      const auto& table = given.to;
      ItemsOn<B>{backend, workspace}(RoundedTable<A, ScalarOf<decltype(table)>>{
          std::ptrdiff_t{table.extent[0]} * table.extent[1] * table.extent[2], table.extent[3], 1, to.bias.elements,
          table, given.adds});
    }
  }

  /// The sums of the score's numbers, in the backend's memory.
  ScoreSums<A> sums() const { return {to.slots, to.tables, shape_, to.count, by_duals}; }
  /// f(the same on the host). Waits for them.
  template <class F> void with_sums_on_host(const B& backend, typename B::Workspace& workspace, const F& f) const {
    const std::vector<Sum> slots = fetched(backend, workspace, to.slots, slots_);
    std::vector<Sum> sums[std::size_t{ScoreGradientsTo<A>::most_tables}];
    TableGradient<A, Sum> tables[std::size_t{ScoreGradientsTo<A>::most_tables}];
    for (int t = 0; t < Tables<Numbers, Head>::count(); ++t) {
      tables[t] = to.tables[t];
      sums[t] = fetched(backend, workspace, tables[t].sums + tables[t].least,
                        heads() * static_cast<std::size_t>(tables[t].count));
      tables[t].sums = sums[t].data() - tables[t].least;
    }
    f(ScoreSums<A>{slots.data(), tables, shape_, to.count, by_duals});
  }

  ScoreGradientsTo<A> to{};

 private:
  std::size_t heads() const { return static_cast<std::size_t>(shape_.batch) * static_cast<std::size_t>(shape_.heads); }

  /// Whether the gradient itself holds the sums, and no table of the frame.
  template <class E> static bool holds_sums(const BiasGradient<E>& given) {
    return std::is_same_v<E, A> && !given.adds;
  }
  template <class E, class Frame> void place_bias(const BiasGradient<E>& given, Frame& frame) {
    const TensorView<E, 4>& table = given.to;
    if (table.size() == 0) return;
    std::ptrdiff_t size = 1;
    for (int a = 3; a >= 0; --a) {
      const std::ptrdiff_t step = holds_sums(given) ? table.stride[a] : size;
      to.bias.stride[a] = table.extent[a] == 1 ? 0 : step;
      size *= table.extent[a];
    }
    if constexpr (std::is_same_v<E, A>)
      if (holds_sums(given)) to.bias.elements = table.data;
    if (!holds_sums(given)) to.bias.elements = frame.template take<A>(static_cast<std::size_t>(size));
  }

  /// The sums of a RelativeBias by distance: as far as its buckets tell distances apart.
  template <class W, class Part, class Frame>
  void place_tables(const Part& score, TableGradient<A, Sum>*& next, Frame& frame) const {
    if constexpr (is_chain<Part>) {
      place_tables<typename W::First>(score.first, next, frame);
      place_tables<typename W::Second>(score.second, next, frame);
    } else if constexpr (std::is_same_v<Part, RelativeBias> && W::parameters) {
      const auto [least, count] = score.told_apart(shape_);
      Sum* const sums = frame.template take<Sum>(heads() * static_cast<std::size_t>(count));
      *next++ = {sums - least, nullptr, {shape_.heads * count, count, -1, 1}, Origins(Index{0}), least, count};
    }
  }

  static std::vector<Sum> fetched(const B& backend, typename B::Workspace& workspace, const Sum* from, std::size_t n) {
    std::vector<Sum> here(n);
    if (n == 0) return here;
    if constexpr (computes_on_host<B>)
      std::copy_n(from, n, here.data());
    else
      backend.download(from, std::span<Sum>(here), workspace);
    return here;
  }

  const S& score_;
  const CallShape shape_;
  std::size_t slots_ = 0;
};

/// The gradients of a call's score while they are computed, on the backend or on the host, and for a ScoreGradient a
/// stream that they can be read from.
template <class A, class Wanted, class Head, class B, class S, class Frame, class... Extra>
auto call_score_gradients(const char* call, const ItemsOn<B>& on, const S& score, const CallShape& shape, Frame& frame,
                          const Extra&... extra) {
  if constexpr (sums_scores<B>) {
    using Sums = DeviceScoreGradients<A, Wanted, Head, S, B>;
    if constexpr (Sums::waits && (ScoreGradientArgument<Extra> || ...)) require_sendable(on.backend, on.workspace);
    return Sums(call, on.backend, score, shape, frame, extra...);
  } else {
    require_own_numbers<Wanted>(call, score);
    return score_gradient_sums<A, Wanted, Head>(score, given_bias_sums<A>(call, score, shape, frame, extra...), shape,
                                                frame);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail
