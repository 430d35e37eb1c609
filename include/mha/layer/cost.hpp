// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "../block/cost.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../policy/mask.hpp"
#include "../policy/mask/bands.hpp"
#include "../policy/mask/positional.hpp"
#include "config.hpp"
#include "policies.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What a layer and one call of it cost, stage by stage. Only products are counted: softmax, scores, norm, position and
/// gates are not.
struct Cost {
  using Stage = StageCost;
  Stage projection;          ///< Q, K and V from their rows; a norm's weights are among its parameters
  Stage score;               ///< q·k of the visible pairs; their weights are never stored
  Stage value;               ///< weights · v of the visible pairs
  Stage output;              ///< back to d_model; the heads' gates are among its parameters
  double visible_pairs = 0;  ///< (query, key) pairs that the mask shows, summed over the batch, mean of the heads
  std::int64_t cache_elements = 0;  ///< K and V of all keys: what a cache holds of the sequences
  double activation_elements = 0;   ///< Q, K, V and the heads; Lq × Lk is not among them
  double crossover_length = 0;  ///< self-attention without a mask costs more than the projections beyond this length

  std::int64_t parameters() const { return projection.parameters + output.parameters; }
  double attention_flop() const { return score.flop + value.flop; }
  double total_flop() const { return projection.flop + attention_flop() + output.flop; }
  double total_bytes() const { return projection.bytes + score.bytes + value.bytes + output.bytes; }
};

/// What the backward pass of a call of a layer costs, stage by stage, counted as Cost counts the call. `score` makes
/// the logits again and has the gradients of q and k, `value` those of the weights and of v.
struct BackwardCost {
  using Stage = StageCost;
  Stage projection, score, value, output;
  double visible_pairs = 0;  ///< as in Cost
  double tape_bytes = 0;     ///< what the call leaves on its tape, beside what that borrows
  double scratch_bytes = 0;  ///< gradients, and matrices that are only packed, in the Workspace; what products and
                             ///< kernels take for their own use is apart, but for a device's copies of rows

  /// Numbers that have gradients, but for a Sink's and a score's.
  std::int64_t parameters() const { return projection.parameters + output.parameters; }
  double attention_flop() const { return score.flop + value.flop; }
  double total_flop() const { return projection.flop + attention_flop() + output.flop; }
  double total_bytes() const { return projection.bytes + score.bytes + value.bytes + output.bytes; }
};

namespace detail {

/// The pairs that one head sees of a rectangle of positions, halved until the mask knows it whole or it is small.
template <class M>
std::int64_t visible_in(const M& mask, Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) {
  constexpr Index small = 32;
  const Index rows = q_end - q_begin, columns = k_end - k_begin;
  if (rows == 0 || columns == 0) return 0;
  const TileVisibility seen = mha::tile(mask, b, h, q_begin, q_end, k_begin, k_end);
  if (seen == TileVisibility::none) return 0;
  if (seen == TileVisibility::full) return std::int64_t{rows} * columns;
  if (rows > small || columns > small) {
    const Index q = rows >= columns ? q_begin + rows / 2 : q_end, k = rows >= columns ? k_end : k_begin + columns / 2;
    return visible_in(mask, b, h, q_begin, q, k_begin, k) + (rows >= columns
                                                                 ? visible_in(mask, b, h, q, q_end, k_begin, k_end)
                                                                 : visible_in(mask, b, h, q_begin, q_end, k, k_end));
  }
  std::int64_t pairs = 0;
  for (Index q = q_begin; q < q_end; ++q)
    for (Index k = k_begin; k < k_end; ++k) pairs += mask(b, h, q, k) ? 1 : 0;
  return pairs;
}

/// The same over the batch, the mean of the heads, where sequence b has keys_of(b) keys, of a mask that is prepared.
template <Mask Ready, class KeysOf>
double visible_pairs(const Ready& ready, const CallShape& shape, const KeysOf& keys_of) {
  static_cast<void>(with_data(ready, [](const auto& data) {
    if constexpr (requires { data.memory; })
      require(data.memory == Memory::host || data.size == 0,
              "cost: the mask's data is in device memory, but its pairs are counted on the host: give the mask before "
              "mha::on_device()");
    return data;
  }));
  double pairs = 0;
  for (Index b = 0; b < shape.batch; ++b) {
    const Index first = shape.origin[b], keys = keys_of(b), queries = shape.queries_of(b);
    const std::int64_t end = std::int64_t{first} + queries;
    if constexpr (Banded<Ready>) {
      pairs += static_cast<double>(BandsOf<Ready>::of(ready, b).pairs(first, end, 0, keys)) * shape.heads;
    } else {
      require(end <= std::numeric_limits<Index>::max(), "cost: the origin ", first, " puts ", queries,
              " queries beyond position ", std::numeric_limits<Index>::max());
      for (Index h = 0; h < shape.heads; ++h)
        pairs += static_cast<double>(visible_in(ready, b, h, first, static_cast<Index>(end), 0, keys));
    }
  }
  return shape.heads > 0 ? pairs / shape.heads : 0;
}

}  // namespace detail

/// How many (query, key) pairs of a call a mask shows, summed over the batch, the mean of the heads.
///
/// Cost      Full, Causal, CausalTopLeft, SlidingWindow, Padding, LeftPadding, FirstKeys, Prefix and what &&, || and !
///           make of them: a formula for each sequence. Others: one classification per tile, where small partial tiles
///           are counted pair by pair; that is linear in the length for a mask with tile(), and every pair for one
///           without
/// Errors    ShapeError if the mask's data does not fit the call or is in device memory, or a mask that is counted by
///           tiles would be asked about the largest Index or beyond
template <Mask M> [[nodiscard]] double visible_pairs(const M& mask, const CallShape& shape) {
  return detail::visible_pairs(mha::prepared(mask, shape), shape, [&](Index) { return shape.keys; });
}

namespace detail {

/// Rows of a call, those of all sequences together.
struct CallRows {
  double queries;
  double made;       ///< of keys and values, in this call
  double keys;       ///< attended to
  double key_bytes;  ///< of a number of these
  double visible_pairs;
};

/// How wide the rows of a memory are; those of keys and those of values together, if a call is given them apart.
inline double memory_width(const Config& c) {
  return double(c.kv_model) + (c.value_model != c.kv_model ? c.value_model : 0);
}

/// The cost of a layer of these policies, whose configuration is complete, in scalar T, its matrices in weight_bytes
/// bytes a number.
template <class T, class Policies> Cost layer_cost(const Config& c, const CallRows& rows, double weight_bytes) {
  constexpr bool has_norm = Policies::Norm::has_weights, has_gates = Policies::Concat::has_gates;
  using Output = typename Policies::Output;
  const double E = c.d_model, q_rows = rows.queries, k_rows = rows.keys;
  const double q_width = c.query_width(), k_width = c.key_width(), v_width = c.value_width();
  const double concat = c.concat_width(), y_width = Output::width(c.concat_width(), c.d_model);
  const double q_weights = E * q_width, kv_weights = c.kv_model * k_width + c.value_model * v_width;
  const double out_weights = Output::has_weights ? concat * E : 0;
  const double bytes = sizeof(T), saved = bytes - weight_bytes;

  Cost cost;
  cost.visible_pairs = rows.visible_pairs;
  const double biases =
      (c.has_query_bias() ? q_width : 0) + (c.has_key_bias() ? k_width : 0) + (c.has_value_bias() ? v_width : 0);
  const double in = q_weights + kv_weights + biases + (has_norm ? 2 * c.head_dim : 0);
  cost.projection = {static_cast<std::int64_t>(in), 2 * (q_rows * q_weights + rows.made * kv_weights),
                     bytes * (in + q_rows * (E + q_width) + rows.made * (memory_width(c) + k_width + v_width)) -
                         saved * (q_weights + kv_weights)};
  cost.score = {0, 2 * cost.visible_pairs * q_width, bytes * q_rows * q_width + rows.key_bytes * k_rows * k_width};
  cost.value = {0, 2 * cost.visible_pairs * concat, rows.key_bytes * k_rows * v_width + bytes * q_rows * concat};
  const double out = out_weights + (Output::has_weights && c.has_output_bias() ? E : 0) + (has_gates ? c.num_heads : 0);
  cost.output = {static_cast<std::int64_t>(out), 2 * q_rows * out_weights,
                 bytes * (out + q_rows * (concat + y_width)) - saved * out_weights};
  cost.cache_elements = static_cast<std::int64_t>(k_rows * (k_width + v_width));
  cost.activation_elements = q_rows * (q_width + concat) + rows.made * (k_width + v_width);
  cost.crossover_length = (q_weights + kv_weights + out_weights) / (q_width + concat);
  return cost;
}

/// How many numbers a layer's matrices have, without biases.
template <class Output> double matrix_numbers(const Config& c) {
  const double of_heads = double(c.kv_model) * c.key_width() + double(c.value_model) * c.value_width();
  return double(c.d_model) * c.query_width() + of_heads +
         (Output::has_weights ? double(c.concat_width()) * c.d_model : 0);
}

/// The cost of a layer's backward pass. Products on a device read copies of their rows, and gradients in T; those of
/// one stage are given back before the next. Queries and keys that are as many are taken for one x.
template <class T, class Policies, bool on_device = false>
BackwardCost layer_backward_cost(const Config& c, const CallRows& rows) {
  constexpr bool has_norm = Policies::Norm::has_weights, has_gates = Policies::Concat::has_gates;
  const Cost forward = layer_cost<T, Policies>(c, rows, sizeof(T));
  const double own = sizeof(T), wide = sizeof(Accumulator<T>), q_rows = rows.queries, k_rows = rows.keys;
  const double q = q_rows * c.query_width(), k = k_rows * c.key_width(), v = k_rows * c.value_width(),
               heads = q_rows * c.concat_width();
  const double y = q_rows * Policies::Output::width(c.concat_width(), c.d_model);
  const double row_states = 2 * q_rows * c.num_heads;
  const auto in = double(forward.projection.parameters), out = double(forward.output.parameters);
  BackwardCost cost;
  cost.visible_pairs = rows.visible_pairs;
  cost.projection = {forward.projection.parameters, 2 * forward.projection.flop,
                     own * (in + 2 * (q_rows * c.d_model + k_rows * memory_width(c))) + wide * (in + q + k + v)};
  cost.score = {0, 3 * forward.score.flop, own * (q + k) + wide * (q + k + row_states)};
  cost.value = {0, 2 * forward.value.flop, own * (v + 2 * heads) + wide * v};
  cost.output = {forward.output.parameters, 2 * forward.output.flop, own * (out + y + 2 * heads) + wide * out};
  cost.tape_bytes = own * (q + k + v + heads + (has_norm ? q + k : 0)) + wide * row_states;
  cost.scratch_bytes = own * heads * (has_gates ? 2 : 1) + wide * (q + k + v);
  if constexpr (on_device) {
    const double rounded = std::is_same_v<T, Accumulator<T>> ? 0 : own, x = own * q_rows * c.d_model,
                 memory = own * k_rows * std::max(c.kv_model, c.value_model);
    const double of_output = Policies::Output::has_weights ? own * heads : 0, of_norms = has_norm ? std::max(q, k) : 0;
    const double of_rows =
        q_rows == k_rows ? x + rounded * (q + k + v) : std::max(x + rounded * q, memory + rounded * (k + v));
    cost.scratch_bytes += std::max({of_output, wide * of_norms, of_rows});
  }
  return cost;
}

/// The rows of a call without a cache.
template <class T, Mask M> CallRows call_rows(const Config& c, Index batch, Index queries, Index keys, const M& mask) {
  require(batch >= 0, "cost: batch is ", batch, ", it must be at least 0");
  require(queries >= 0, "cost: queries is ", queries, ", it must be at least 0");
  require(keys >= 0, "cost: keys is ", keys, ", it must be at least 0");
  checked_product("cost", "the cache", {batch, keys, std::int64_t{c.key_width()} + c.value_width()});
  const double k_rows = double(batch) * keys;
  return {double(batch) * queries, k_rows, k_rows, sizeof(T),
          mha::visible_pairs(mask, {batch, c.num_heads, queries, keys, keys - queries})};
}

/// The cost of a call without a cache.
template <class T, class Policies, Mask M>
Cost layer_cost(const Config& c, Index batch, Index queries, Index keys, const M& mask,
                double weight_bytes = sizeof(T)) {
  return layer_cost<T, Policies>(c, call_rows<T>(c, batch, queries, keys, mask), weight_bytes);
}

/// The same of a step of a cache: keys and values are made of its rows alone, and all that are stored are read.
template <class T, class Policies, class Step, Mask M>
Cost step_cost(const Config& c, const Step& step, const M& mask, double weight_bytes) {
  const CallShape shape = step.shape(c.num_heads);
  double keys = 0;
  for (Index b = 0; b < shape.batch; ++b) keys += step.kept(b);
  // The mask is prepared as for the call, and counted where the sequences are.
  CallShape planned = step.planned(shape);
  std::vector<Index> last;
  for (Index b = 0; b < shape.batch && step.planned_keys() > 0; ++b) last.push_back(planned.keys - shape.queries_of(b));
  if (!last.empty()) planned.origin = Origins(last.data());
  const auto ready = with_data(prepared(mask, planned), [&](const auto& data) {
    auto result = data;
    if constexpr (std::is_same_v<decltype(result), Origins>)
      if (data.each != nullptr) result = shape.origin;
    return result;
  });
  return layer_cost<T, Policies>(c,
                                 {double(step.rows()), double(step.rows()), keys, sizeof(typename Step::Scalar),
                                  visible_pairs(ready, shape, [&](Index b) { return shape.queries_end(b); })},
                                 weight_bytes);
}

}  // namespace detail

/// The cost of a layer with an output projection, for any numbers of heads, sizes and lengths, in a scalar of T's size.
/// A layer knows its own: layer.cost(batch, queries, keys), and layer.cost(step[i]) of a cache.
///
/// Formula   parameters E·Hq·D + Hkv·(E_kv·D + E_v·Dv) + Hq·Dv·E (+ biases) · projections 2 per parameter and row ·
///           attention 2·pairs·Hq·(D + Dv) · cache Hkv·(D + Dv) per key
/// Errors    ShapeError if the configuration does not fit together, a size is negative, or the mask's data does not fit
///           it or is in device memory
template <Heads H = GroupedQuery<Dynamic>, class T = float, Mask M = Full>
[[nodiscard]] Cost cost(Config config, Index batch, Index queries, Index keys, const M& mask = {}) {
  if (H::kv_heads(1) == Dynamic && config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  return detail::layer_cost<T, detail::PoliciesByRole<H>>(detail::completed<H>(config), batch, queries, keys, mask);
}

/// The cost of the backward pass of such a layer's call; its attention_flop() is that of attention_backward() too.
///
/// Formula   projections 4 per parameter and row · attention 2·pairs·Hq·(3·D + 2·Dv)
/// Errors    as cost()
template <Heads H = GroupedQuery<Dynamic>, class T = float, Mask M = Full>
[[nodiscard]] BackwardCost backward_cost(Config config, Index batch, Index queries, Index keys, const M& mask = {}) {
  if (H::kv_heads(1) == Dynamic && config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  const Config c = detail::completed<H>(config);
  return detail::layer_backward_cost<T, detail::PoliciesByRole<H>>(c,
                                                                   detail::call_rows<T>(c, batch, queries, keys, mask));
}

}  // namespace mha::inline MHA_NAMESPACE
