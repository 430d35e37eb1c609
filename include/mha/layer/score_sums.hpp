// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../block/device_gradients.hpp"
#include "../core/scalar.hpp"
#include "../policy/call_shape.hpp"
#include "../policy/score/relative_bias.hpp"
#include "../policy/score_gradient.hpp"
#include "../policy/trained_score.hpp"
#include "../score_gradients.hpp"
#include "gradients.hpp"

/// The gradients of a layer's score on a device: sums of each head, from which the host makes those of the numbers.
namespace mha::inline MHA_NAMESPACE::detail {

/// The sums of each head += those of a call's sequences.
///
/// Shapes    from (B, Hq, from_pitch)  to (Hq, to_pitch), the first `columns` of each row
template <class A> struct AddHeadSums {
  std::ptrdiff_t rows;  ///< heads
  Index columns, cost;
  Index batch;
  std::ptrdiff_t from_pitch, to_pitch;
  const LongSum<A>* from;
  A* to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t h, Index i) const {
    LongSum<A> sum(0);
    for (Index b = 0; b < batch; ++b) sum += from[(b * rows + h) * from_pitch + i];
    to[h * to_pitch + i] += static_cast<A>(sum);
  }
};

/// The sums of a layer's trained score S that outlive a call: their places in one row, how a call adds to them, and
/// what they are of the numbers.
///
/// Shapes    (Hq, slots, those of scores that accumulate behind the others), then of each RelativeBias
///           (Hq, 2·max_distance + 1), by k − q
template <class A, class S> class HeadScoreSums {
  using Sum = LongSum<A>;
  using Wanted = WantedScoreGradients<false, true>;
  using Head = decltype(at_head(mha::prepared(std::declval<const S&>(), CallShape{}), Index{}, Index{}));
  static constexpr int by_duals = Slots<Wanted, Head>::count(), tables = Tables<Wanted, Head>::count();

 public:
  HeadScoreSums(const S& score, Index heads) : heads_(heads), slots_(by_duals + accumulated_numbers<Wanted>(score)) {
    auto* next = reach_.data();
    for_each_table(score, [&](const RelativeBias& bias) { *next++ = bias.buckets().max_distance; });
  }

  std::ptrdiff_t size() const {
    std::ptrdiff_t width = slots_;
    for (const Index reach : reach_) width += width_of(reach);
    return heads_ * width;
  }

  /// On the device: += the sums of a call, of which the layer's score is the first one.
  template <class B> void add(const ScoreSums<A>& sums, A* to, const ItemsOn<B>& run) const {
    const Index batch = sums.shape.batch;
    const auto add_slots = [&](int count, int from, int first) {
      if (count > 0)
        run(AddHeadSums<A>{heads_, count, batch, batch, sums.count, slots_, sums.slots + from, to + first});
    };
    add_slots(by_duals, 0, 0);
    add_slots(slots_ - by_duals, sums.own, by_duals);
    to += std::ptrdiff_t{heads_} * slots_;
    for (std::size_t t = 0; t < reach_.size(); ++t) {
      const auto& table = sums.tables[t];
      const std::ptrdiff_t width = width_of(reach_[t]), first = std::ptrdiff_t{table.least} + reach_[t];
      run(AddHeadSums<A>{heads_, static_cast<Index>(table.count), batch, batch, table.count, width,
                         table.sums + table.least, to + first});
      to += heads_ * width;
    }
  }

  /// On the host: the numbers of the gradient ← what they are of these sums.
  void store(const A* from, Trained<S>& to) {
    wide_.assign(from, from + size());
    Sum* next = wide_.data() + std::ptrdiff_t{heads_} * slots_;
    std::array<TableGradient<A, Sum>, std::size_t{tables}> placed;
    for (std::size_t t = 0; t < reach_.size(); ++t) {
      const std::ptrdiff_t width = width_of(reach_[t]);
      placed[t] = {next + reach_[t], nullptr, {heads_ * width, width, -1, 1}, Origins(Index{0}), -reach_[t], width};
      next += heads_ * width;
    }
    clear_numbers(to);
    add_all_gradients<Wanted, S>(to, ScoreSums<A>{wide_.data(), placed.data(), {1, heads_, 0, 0}, slots_, by_duals});
  }

 private:
  static std::ptrdiff_t width_of(Index reach) { return 2 * std::ptrdiff_t{reach} + 1; }

  template <class Part, class F> static void for_each_table(const Part& score, const F& f) {
    if constexpr (is_chain<Part>)
      for_each_table(score.first, f), for_each_table(score.second, f);
    else if constexpr (std::is_same_v<Part, RelativeBias>)
      f(score);
  }

  Index heads_;
  int slots_;
  std::array<Index, std::size_t{tables}> reach_{};  // distances of each table, both ways
  std::vector<Sum> wide_;                           // the sums, while they are read
};

/// Where a backward pass adds the sums of a layer's score; null: nowhere.
template <class A, class S> struct ScoreSumsTo {
  const HeadScoreSums<A, S>* sums = nullptr;
  A* to = nullptr;
};

/// The gradients of a layer on a device as the host has them: the sums of its score's numbers lie behind the
/// parameters, and `score` is what they are of the numbers.
template <class A, class S> class SummedLayerGradients : public LayerGradients<A, Trained<S>> {
  using Base = LayerGradients<A, Trained<S>>;

 public:
  template <class Layout>
  SummedLayerGradients(std::int64_t size, const Layout& layout, const S& of, Index heads)
      : SummedLayerGradients(size, layout, of, HeadScoreSums<A, S>(of, heads)) {}

  /// After memory() has got what the device has.
  void received() { sums_.store(this->memory().data + first_, this->score); }

  const HeadScoreSums<A, S>& sums() const { return sums_; }
  /// Where they are in a memory() that begins here.
  ScoreSumsTo<A, S> sums_at(A* memory) const { return {&sums_, memory + first_}; }

 private:
  template <class Layout>
  SummedLayerGradients(std::int64_t size, const Layout& layout, const S& of, HeadScoreSums<A, S> of_heads)
      : Base(size + of_heads.size(), layout, without_numbers(trained(of))),
        sums_(std::move(of_heads)),
        first_(static_cast<std::ptrdiff_t>(size)) {}

  HeadScoreSums<A, S> sums_;
  std::ptrdiff_t first_;
};

/// The gradients of a layer that has the score S: on a device the sums of the numbers that are trained.
template <class B, class T, class S> struct LayerGradientsOfScore {
  using type = LayerGradients<Accumulator<T>, TrainedOn<B, T, S>>;
};
template <class B, class T, class S>
requires(!computes_on_host<B> && trains_on<B, T, S>) struct LayerGradientsOfScore<B, T, S> {
  using type = SummedLayerGradients<Accumulator<T>, S>;
};
template <class B, class T, class S>
using LayerGradientsOn = GradientsOn<typename LayerGradientsOfScore<B, T, S>::type, B>;

/// All 0. `size` numbers but for those of the score, named by layout(pointer).
template <class B, class T, class S, class Layout>
LayerGradientsOn<B, T, S> layer_gradients(const B& backend, std::int64_t size, const Layout& layout, const S& score,
                                          Index heads) {
  using Host = typename LayerGradientsOfScore<B, T, S>::type;
  if constexpr (trains_on<B, T, S>) require_own_numbers<WantedScoreGradients<false, true>>("gradients", score);
  if constexpr (!trains_on<B, T, S>)
    return make_gradients<Host>(backend, size, layout);
  else if constexpr (computes_on_host<B>)
    return Host(size, layout, without_numbers(trained(score)));
  else
    return make_gradients<Host>(backend, size, layout, score, heads);
}

/// Where a backward pass adds those of a layer's score: their numbers, or on a device their sums; null without
/// gradients.
template <class G> auto score_of(G* gradients) {
  if constexpr (requires { gradients->score; }) {
    return gradients != nullptr ? &gradients->score : nullptr;
  } else if constexpr (requires { gradients->on_host().sums(); }) {
    using To = decltype(gradients->on_host().sums_at(gradients->memory().data));
    return gradients != nullptr ? gradients->on_host().sums_at(gradients->memory().data) : To{};
  } else {
    return static_cast<NoScore*>(nullptr);
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail
