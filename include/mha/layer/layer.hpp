// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "../block/arguments.hpp"
#include "../block/recording.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/overlap.hpp"
#include "../staged.hpp"
#include "cached_call.hpp"
#include "call.hpp"
#include "config.hpp"
#include "cost.hpp"
#include "explain.hpp"
#include "key_values.hpp"
#include "mean_over_heads.hpp"
#include "memory_rows.hpp"
#include "memory_tape.hpp"
#include "parameters.hpp"
#include "policies.hpp"
#include "products.hpp"
#include "stages.hpp"
#include "weights.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A multi-head attention layer. Users name MultiHeadAttention, which sorts its policies into LayerPolicies: the code
/// is shared whatever order they were written in.
///
/// Formula   Q = X W_Q + b_Q,  K = X_kv W_K + b_K,  V = X_kv W_V + b_V;  norm and position on Q and K;
///           head_h = attention(Q_h, K_g(h), V_g(h)),  Y = concat(heads) W_O + b_O
/// Source    Vaswani et al. 2017, §3.2.2
template <class T, Backend B, class Policies> class Layer : public LayerWeights<T, B, Policies> {
  using Weights = LayerWeights<T, B, Policies>;
  using Concat = typename Policies::Concat;
  using Output = typename Policies::Output;
  using Position = typename Policies::Position;
  using Matrix = detail::LayerMatrix;

 public:
  using Scalar = T;
  using Workspace = typename B::Workspace;
  using KeyValues = mha::KeyValues<T, detail::TensorOf<B, T, 4>>;

  Layer(const Config& config, Policies policies, B backend)
      : Weights(detail::completed<typename Policies::Heads>(config), std::move(backend), std::move(policies.norm),
                std::move(policies.position)),
        mask_(detail::checked_policy(std::move(policies.mask), config_.num_heads), backend_),
        score_(detail::checked_policy(std::move(policies.score), config_.num_heads), backend_),
        sink_(std::move(policies.sink), backend_),
        dropout_(policies.dropout) {
    detail::require_probability("layer", detail::probability(dropout_));
    static_cast<void>(sink_.own().logits(config_.num_heads));
  }

  /// Self-attention.
  ///
  /// Shapes    x (L, E) or (B, L, E)  →  the same; with NoOutput the last axis is Hq·Dv. Ragged: (ΣL, E)
  /// Then      in any order: masks (they intersect with the layer's), scores (after the layer's), Ragged, Origin,
  ///           Positions, residual(r), which is added last and may be y itself, into(y), where y may be x itself,
  ///           LogSumExp, a DropoutSeed, without which a layer with Dropout drops nothing, a Workspace, another value
  ///           of the backend's type. The scale is Config::scale.
  /// Errors    ShapeError if a size is not the configuration's, weights are missing, or a LogSumExp overlaps y or r
  template <SequenceOf<T> X, class... Extra>
  requires(!((detail::MemoryArgument<Extra> || detail::LayerStepArgument<Extra> || detail::CallTapeArgument<Extra>) ||
             ...)) [[nodiscard]] auto
  operator()(const X& x, Extra&&... extra) const {
    return run(x, detail::read_memory<B>(x), extra...);
  }

  /// Cross-attention: queries from x, keys and values from memory.
  ///
  /// Shapes    x (Lq, E)  memory (Lk, E_kv), or (B, Lq, E) and (B or 1, Lk, E_kv), or what project_memory() returned,
  ///           or a source (B, lengths of its own, Hkv, D) as attention() takes it, such as PagedKv or step.source(i)
  ///           of a cache, of keys and values as project_memory() makes them; with x (ΣLq, E) and Ragged{query
  ///           offsets} too. Where Origin is not given, each sequence's last query meets its last key
  template <SequenceOf<T> X, detail::MemoryOf<KeyValues> Memory, class... Extra>
  requires(!(detail::CallTapeArgument<Extra> || ...) && !detail::has_value_rows<Memory, Extra...>) [[nodiscard]] auto
  operator()(const X& x, const Memory& memory, Extra&&... extra) const {
    return run(x, detail::read_memory<B>(memory), extra...);
  }

  /// The same with keys from some rows and values from others.
  ///
  /// Shapes    keys (Lk, E_kv) or (B or 1, Lk, E_kv)  values the same, with E_v columns, Config::value_model; either
  ///           may be x itself
  template <SequenceOf<T> X, SequenceOf<T> Keys, SequenceOf<T> Values, class... Extra>
  requires(!(detail::CallTapeArgument<Extra> || ...)) [[nodiscard]] auto operator()(const X& x, const Keys& keys,
                                                                                    const Values& values,
                                                                                    Extra&&... extra) const {
    return run(x, detail::read_memory<B>(keys, values), extra...);
  }

  /// Self-attention of rows that follow what a cache holds of their sequences: their keys and values are written to the
  /// cache, then they attend to all that it holds. See mha/layer/cache_step.hpp.
  ///
  /// Shapes    x (Σn, E), sequence by sequence as the step names them, or (B, n, E)  →  the same
  /// Then      masks, scores, Positions, without which rows follow each other, residual(r), into(y), LogSumExp, a
  ///           Workspace, a backend
  /// Errors    ShapeError if a size is not the configuration's, the step's or the cache's, or the mask may show what
  ///           a Ring has dropped; the step can be ended then as if nothing had happened
  template <SequenceOf<T> X, detail::LayerStepArgument Step, class... Extra>
  requires(!(detail::CallTapeArgument<Extra> || ...)) [[nodiscard]] auto operator()(const X& x, const Step& step,
                                                                                    Extra&&... extra) const {
    detail::check_cached_arguments<Extra...>();
    return run(x, step, extra...);
  }

  /// The short form of a step for a cache of one layer: rows for all its sequences, committed.
  ///
  /// Shapes    x (n, E) for one sequence, (B·n, E) or (B, n, E) for B in the order in which they were added
  /// Errors    as cache.step() and layer(x, step[i]); ShapeError if the cache has more than one layer or no sequence
  template <SequenceOf<T> X, class Cache, class... Extra>
  [[nodiscard]] auto step(const X& x, Cache& cache, Extra&&... extra) const {
    detail::require_short_form("step", cache);
    return in_steps(x, cache, detail::longest_axis, extra...);
  }
  /// The same, errors too, for prompts of any length: a Ring is given its `rows` at a time, each piece committed, after
  /// masks and scores were checked for all of them. y may be x itself, or be apart from it.
  template <SequenceOf<T> X, class Cache, class... Extra>
  [[nodiscard]] auto prefill(const X& x, Cache& cache, Extra&&... extra) const {
    detail::check_prefill_arguments<Extra...>();
    detail::require_short_form("prefill", cache);
    return in_steps(x, cache, cache.max_rows(), extra...);
  }

  /// The softmax of every head, which a call never stores: (B, Hq, Lq, Lk), in the backend's memory.
  template <SequenceOf<T> X, class... Extra>
  requires(!(detail::MemoryArgument<Extra> || ...))
      [[nodiscard]] auto attention_weights(const X& x, Extra&&... extra) const {
    return weights(x, detail::read_memory<B>(x), extra...);
  }
  template <SequenceOf<T> X, detail::MemoryOf<KeyValues> Memory, class... Extra>
  requires(!detail::has_value_rows<Memory, Extra...>)
      [[nodiscard]] auto attention_weights(const X& x, const Memory& memory, Extra&&... extra) const {
    return weights(x, detail::read_memory<B>(memory), extra...);
  }
  template <SequenceOf<T> X, SequenceOf<T> Keys, SequenceOf<T> Values, class... Extra>
  [[nodiscard]] auto attention_weights(const X& x, const Keys& keys, const Values& values, Extra&&... extra) const {
    return weights(x, detail::read_memory<B>(keys, values), extra...);
  }

  /// The softmax averaged over the heads: (B, Lq, Lk).
  template <SequenceOf<T> X, class... Extra>
  requires(!detail::has_foreign_memory<KeyValues, Extra...> && !detail::misplaced_memory<Extra...>)
      [[nodiscard]] auto mean_attention_weights(const X& x, Extra&&... extra) const {
    const B& backend = detail::backend_or(backend_, extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto each = attention_weights(x, extra...);
    detail::TensorOf<B, Accumulator<T>, 3> mean(each.extent(0), each.extent(2), each.extent(3));
    scope.items(detail::mean_over_heads<Accumulator<T>>(each.view(), mean.view()));
    return mean;
  }

  /// What a call of this shape costs, stage by stage; masks of the call intersect with the layer's.
  ///
  /// Errors    ShapeError if a size is negative, or a mask's data does not fit it or is in device memory
  template <Mask... Masks>
  [[nodiscard]] Cost cost(Index batch, Index queries, Index keys, const Masks&... masks) const {
    return detail::layer_cost<T, Policies>(config_, batch, queries, keys, all_masks(masks...),
                                           products_.weight_bytes());
  }
  /// The same of layer(x, step[i], masks…).
  template <detail::LayerStepArgument Step, Mask... Masks>
  [[nodiscard]] Cost cost(const Step& step, const Masks&... masks) const {
    step.check_sizes(config_);
    return detail::step_cost<T, Policies>(config_, step, all_masks(masks...), products_.weight_bytes());
  }

  /// The heads, policies, cost, kernel and memory of such a call, one fact a line.
  template <Mask... Masks>
  [[nodiscard]] std::string explain(Index batch, Index queries, Index keys, const Masks&... masks) const {
    return detail::explain_layer<T, decltype(all_masks(masks...)), Policies>(
        backend_, config_, position_, cost(batch, queries, keys, masks...),
        {batch, config_.num_heads, queries, keys, keys - queries},
        {detail::weights_in_words(parameters_, products_), "", double(batch) * queries * keys});
  }
  /// The same of a step of a cache, and what the cache stores.
  template <detail::LayerStepArgument Step, Mask... Masks>
  [[nodiscard]] std::string explain(const Step& step, const Masks&... masks) const {
    return detail::explain_layer<T, decltype(all_masks(masks...)), Policies, typename Step::Scalar>(
        backend_, config_, position_, cost(step, masks...), step.planned(step.shape(config_.num_heads)),
        {detail::weights_in_words(parameters_, products_), step.cache_in_words(), step.pairs()});
  }

 private:
  template <class X, class Memory, class... Extra> auto run(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_arguments<Extra...>();
    detail::check_memory_of<B, X>();
    const auto from = detail::read_sequence(x);
    check(from, memory);
    return detail::into_or_returned<X, T>(
        backend_, from, output_width(), [&](const TensorView<T, 3>& y) { forward(from, memory, y, extra...); },
        extra...);
  }

  /// Steps of at most so many rows of every sequence.
  template <class X, class Cache, class... Extra>
  auto in_steps(const X& x, Cache& cache, Index most, Extra&... extra) const {
    detail::check_cached_arguments<Extra...>();
    detail::check_memory_of<B, X>();
    cache.require_sendable();  // before a result is allocated
    const auto all = detail::read_sequence(x);
    const auto from = detail::each_sequence(all, cache);
    const auto to = [&](const TensorView<T, 3>& rows) {
      check_result(all, rows);
      detail::require_residual(detail::backend_or(backend_, extra...), all, output_width(), extra...);
      detail::require_pieces(all, rows, detail::find_rows<Residual, const T>(extra...), from.extent[1], most, cache);
      const auto whole = detail::whole_call(detail::backend_or(backend_, extra...),
                                            detail::intersect(mask_.there(), detail::collect_masks(extra...)),
                                            detail::chain(score_.there(), detail::collect_scores(extra...)),
                                            config_.num_heads, from.extent[1], most, cache, extra...);
      const auto y = detail::each_sequence(rows, cache);
      for (Index begin = 0; begin == 0 || begin < from.extent[1]; begin += most) {
        const Index count = std::min(most, from.extent[1] - begin);
        auto step = cache.step(count);
        const auto part = detail::part_of(from, begin, count);
        const auto growing = step[0].within(whole.shape());
        check(part, growing);
        const auto to_part = [&](auto&&... of_part) {
          forward(part, growing, detail::part_of(y, begin, count), of_part...);
        };
        to_part(detail::part_of_argument<T>(extra, cache, begin, count)...);
        step.commit();
      }
    };
    return detail::into_or_returned<X, T>(backend_, all, output_width(), to, extra...);
  }

  template <class Memory, class... Extra>
  MHA_NO_INLINE void forward(const TensorView<const T, 3>& x, const Memory& memory, const TensorView<T, 3>& y,
                             Extra&... extra) const {
    const Config& c = config_;
    const Index batch = x.extent[0], length = x.extent[1];
    check_result(x, y);
    const B& backend = detail::backend_or(backend_, extra...);
    detail::require_residual(backend, x, output_width(), extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto made = detail::projected<B>(c, x, detail::memory_of_call<B>(x, memory), true, scope.frame);
    // The canonical layout (B, L, H, Dv) is already the concatenation (B·L, H·Dv).
    const detail::HeadSizes of_heads{c.num_heads, c.value_dim};
    const auto heads = detail::head_buffers<T, false>(scope.frame, batch, length, {of_heads})[0];
    // Everything is checked before anything is computed: the views' memory is filled below.
    const detail::CallNames names = detail::layer_names(x, memory);
    const auto given = options(batch, memory, extra...);
    const TensorView<const T, 4> q = made.q;
    auto checked = detail::attend_call<T, detail::memory_of<B>>(
        names, heads, q, detail::source_of(names, q, made.key, made.value, memory, given.ragged),
        detail::intersect(mask_.there(), detail::collect_masks(extra...)),
        detail::chain(score_.there(), detail::collect_scores(extra...)), sink_.there(), given, scope.frame);
    detail::require_supported(backend, "layer");
    detail::require_reachable(backend, "layer", "x", x);
    detail::require_memory_reachable(backend, made.rows, memory, checked.kv);
    detail::require_written(backend, y, checked.log_sum_exp, extra...);

    const auto call = detail::staged(backend, std::move(checked), scope.frame, scope.workspace,
                                     detail::sent_numbers(memory, scope.workspace));
    const auto w = parameters_.views();
    const auto at = detail::positions_of<Position>(scope, x, made.rows, call, memory, extra...);
    project(scope, x, made, at, w);
    if constexpr (detail::LayerStepArgument<Memory>)
      memory.write(made.key, made.value, parameters_.version(), scope.items);
    detail::run(backend, call, scope.workspace);
    detail::run_gates<B, Concat, T>(heads, products_.vectors(w).gate, scope.items);
    const TensorView<const T, 2> rows = view(heads.data, batch * length, c.concat_width());
    detail::finish_rows<Output>(products_, rows, w, y, scope.frame, scope.items, extra...);
  }

  template <class X, class Memory, class... Extra>
  MHA_NO_INLINE auto weights(const X& x, const Memory& memory, Extra&... extra) const {
    detail::check_layer_weights_arguments<Extra...>();
    detail::check_memory_of<B, X>();
    const auto from = detail::read_sequence(x);
    check(from, memory);
    const B& backend = detail::backend_or(backend_, extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto made = detail::projected<B>(config_, from, memory, false, scope.frame);
    const detail::CallNames names = detail::layer_names(from, memory);
    const auto given = options(from.extent[0], memory, extra...);
    const TensorView<const T, 4> q = made.q;
    auto checked = detail::checked_call<T, detail::memory_of<B>>(
        names, q, detail::source_of(names, q, made.key, made.key, memory, given.ragged),
        detail::intersect(mask_.there(), detail::collect_masks(extra...)),
        detail::chain(score_.there(), detail::collect_scores(extra...)), sink_.there(), given, scope.frame);
    detail::require_supported(backend, "layer");
    detail::require_reachable(backend, "layer", "x", from);
    detail::require_memory_reachable(backend, made.rows, memory, checked.kv);
    const auto call = detail::staged(backend, std::move(checked), scope.frame, scope.workspace);
    const auto at = detail::positions_of<Position>(scope, from, made.rows, call, memory, extra...);
    project(scope, from, made, at, parameters_.views());
    return detail::run_weights(backend, call, scope.workspace);
  }

 protected:
  using Weights::backend_, Weights::config_, Weights::norm_, Weights::parameters_, Weights::position_,
      Weights::products_, Weights::require_weights;

  template <class... Masks> auto all_masks(const Masks&... masks) const {
    return detail::intersect(mask_.own(), detail::collect_masks(masks...));
  }
  Index output_width() const { return Output::width(config_.concat_width(), config_.d_model); }

  /// to[i] = from[i] · matrix first + i, with its bias: one product where neighbours are made from the same rows.
  ///
  /// Shapes    from[i] (B, L, E)  to[i] (B·L, columns)
  void multiply(detail::CallScope<B>& scope, const ParameterViews<const T>& w, Matrix first,
                const TensorView<const T, 3>* from, std::span<const TensorView<T, 2>> to) const {
    for (std::size_t begin = 0, end = 0; begin < to.size(); begin = end) {
      for (end = begin + 1; end < to.size() && detail::same_view(from[begin], from[end]);) ++end;
      products_.run(scope.backend, detail::as_rows(from[begin], scope.frame, scope.items), w,
                    static_cast<Matrix>(static_cast<std::size_t>(first) + begin), to.subspan(begin, end - begin),
                    scope.workspace);
    }
  }

  /// Q, K and V of a call, normalised and turned.
  void project(detail::CallScope<B>& scope, const TensorView<const T, 3>& x, const detail::Projected<T>& p,
               const detail::CallPositions& at, const ParameterViews<const T>& w) const {
    const TensorView<const T, 3> from[] = {x, p.rows.keys, p.rows.values};
    const TensorView<T, 2> results[] = {detail::rows_of(p.q), detail::rows_of(p.to_key), detail::rows_of(p.to_value)};
    const unsigned made = p.to_key.data == nullptr ? 1 : p.to_value.data == nullptr ? 2 : 3;
    multiply(scope, w, Matrix::query, from, {results, made});
    if constexpr (Policies::Norm::has_weights)
      if (p.q_before_norm.data != nullptr) {
        scope.items(detail::copy_items(TensorView<const T, 4>(p.q), p.q_before_norm));
        scope.items(detail::copy_items(TensorView<const T, 4>(p.to_key), p.key_before_norm));
      }
    detail::run_norm<B, T>(norm_, p.q, products_.vectors(w).query_norm, scope.items);
    detail::run_position<B, T>(position_, p.q, at.queries, scope.items);
    if (made > 1) finish_keys(p.to_key, w, at.keys, scope.items);
  }

  void finish_keys(const TensorView<T, 4>& keys, const ParameterViews<const T>& w, const RowPositions& at,
                   const detail::ItemsOn<B>& items) const {
    detail::run_norm<B, T>(norm_, keys, products_.vectors(w).key_norm, items);
    detail::run_position<B, T>(position_, keys, at, items);
  }

  void check_rows(const char* call, const char* name, const TensorView<const T, 3>& v, const char* member,
                  Index width) const {
    require_weights(call);
    detail::require_rows(call, name, v, member, width);
  }
  void check_memory(const detail::CallNames& names, const detail::MemoryRows<T>& memory) const {
    check_rows(names.call, names.k, memory.keys, "kv_model", config_.kv_model);
    check_rows(names.call, names.v, memory.values, "value_model", config_.value_model);
    const Index *const k = memory.keys.extent, *const v = memory.values.extent;
    detail::require_equal(names.call, "batch", names.k, k[0], names.v, v[0]);
    detail::require_equal(names.call, "length", names.k, k[1], names.v, v[1]);
  }
  void check_result(const TensorView<const T, 3>& x, const TensorView<T, 3>& y) const {
    detail::require_result(x, y, output_width());
    detail::require_own_memory("layer", "the result", y, detail::axes_of_rows);
  }
  template <class Memory> void check(const TensorView<const T, 3>& x, const Memory& memory) const {
    check_rows("layer", "x", x, "d_model", config_.d_model);
    if constexpr (detail::LayerStepArgument<Memory>) {
      const auto made_of = [&](const char* made, Index width) {
        detail::require(width == config_.d_model, "layer: x has width ", config_.d_model, " but ", made,
                        " are made of rows of width ", width);
      };
      made_of(config_.kv_model == config_.value_model ? "keys and values" : "keys", config_.kv_model);
      made_of("values", config_.value_model);
      memory.check(config_, parameters_.version(), x.extent[0], x.extent[1]);
    } else if constexpr (detail::is_key_values<Memory>)
      detail::require_fitting_memory(memory, config_, parameters_.version());
    else if constexpr (KvSource<Memory>)
      detail::require_fitting_source(detail::kv_sizes(memory), config_);
    else
      check_memory(detail::layer_names(x, memory), memory);
  }
  template <class Memory, class... Extra> auto options(Index batch, const Memory& memory, const Extra&... extra) const {
    return detail::layer_options<B, T>(config_, dropout_, batch, memory, extra...);
  }

  detail::Kept<B, typename Policies::Mask> mask_;
  detail::Kept<B, typename Policies::Score> score_;
  detail::Kept<B, typename Policies::Sink> sink_;
  typename Policies::Dropout dropout_;
};

}  // namespace mha::inline MHA_NAMESPACE
