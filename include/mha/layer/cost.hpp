// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../core/check.hpp"
#include "../policy/concat.hpp"
#include "../policy/mask.hpp"
#include "../policy/mask/positional.hpp"
#include "../policy/output.hpp"
#include "../policy/qk_norm.hpp"
#include "config.hpp"

namespace mha::inline v0 {

/// What a layer and one call of it cost, stage by stage. A multiplication with its addition counts as 2 FLOP; only
/// products are counted: softmax, scores, norm, position and gates are not.
struct Cost {
  struct Stage {
    std::int64_t parameters = 0;  ///< numbers, biases included
    double flop = 0;
    double bytes = 0;  ///< its weights, what it reads and what it leaves, each once; weights of pairs are never stored
  };
  Stage projection;          ///< Q, K and V from their rows; a norm's weights are among its parameters
  Stage score;               ///< q·k of the visible pairs
  Stage value;               ///< weights · v of the visible pairs
  Stage output;              ///< back to d_model; the heads' gates are among its parameters
  double visible_pairs = 0;  ///< (query, key) pairs that the mask shows, summed over the batch, mean of the heads
  std::int64_t cache_elements = 0;  ///< K and V of all keys: what a cache holds
  double activation_elements = 0;   ///< Q, K, V and the heads; Lq × Lk is not among them
  double crossover_length = 0;  ///< self-attention without a mask costs more than the projections beyond this length

  std::int64_t parameters() const { return projection.parameters + output.parameters; }
  double attention_flop() const { return score.flop + value.flop; }
  double total_flop() const { return projection.flop + attention_flop() + output.flop; }
  double total_bytes() const { return projection.bytes + score.bytes + value.bytes + output.bytes; }
};

namespace detail {

/// The pairs that one head sees of a rectangle of positions, halved until the mask knows it whole or it is small.
template <class M>
double visible_in(const M& mask, Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) {
  constexpr Index small = 32;
  const Index rows = q_end - q_begin, columns = k_end - k_begin;
  if (rows == 0 || columns == 0) return 0;
  const TileVisibility seen = mha::tile(mask, b, h, q_begin, q_end, k_begin, k_end);
  if (seen == TileVisibility::none) return 0;
  if (seen == TileVisibility::full) return double(rows) * columns;
  if (rows > small || columns > small) {
    const Index q = rows >= columns ? q_begin + rows / 2 : q_end, k = rows >= columns ? k_end : k_begin + columns / 2;
    return visible_in(mask, b, h, q_begin, q, k_begin, k) + (rows >= columns
                                                                 ? visible_in(mask, b, h, q, q_end, k_begin, k_end)
                                                                 : visible_in(mask, b, h, q_begin, q_end, k, k_end));
  }
  Index pairs = 0;
  for (Index q = q_begin; q < q_end; ++q)
    for (Index k = k_begin; k < k_end; ++k) pairs += mask(b, h, q, k) ? 1 : 0;
  return pairs;
}

}  // namespace detail

/// How many (query, key) pairs of a call a mask shows, summed over the batch, the mean of the heads.
///
/// Cost      one classification per tile; only small partial tiles are counted pair by pair, so that without tile() all
///           are
template <Mask M> double visible_pairs(const M& mask, const CallShape& shape) {
  const auto ready = mha::prepared(mask, shape);
  double pairs = 0;
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      pairs += detail::visible_in(ready, b, h, shape.origin[b], shape.origin[b] + shape.queries, 0, shape.keys);
  return shape.heads > 0 ? pairs / shape.heads : 0;
}

namespace detail {

/// The cost of a layer of these policies, whose configuration is complete, in scalar T.
template <class T, Norm N, Concat C, Output O, Mask M>
Cost layer_cost(const Config& c, Index batch, Index queries, Index keys, const M& mask) {
  require(batch >= 0, "cost: batch is ", batch, ", the least is 0");
  require(queries >= 0, "cost: queries is ", queries, ", the least is 0");
  require(keys >= 0, "cost: keys is ", keys, ", the least is 0");
  const double E = c.d_model, q_rows = double(batch) * queries, k_rows = double(batch) * keys;
  const double q_width = c.query_width(), k_width = c.key_width(), v_width = c.value_width();
  const double concat = c.concat_width(), y_width = O::width(c.concat_width(), c.d_model);
  const double q_weights = E * q_width, kv_weights = c.kv_model * (k_width + v_width);
  const double out_weights = O::has_weights ? concat * E : 0;
  const double biases = c.bias ? 1 : 0, bytes = sizeof(T);

  Cost cost;
  cost.visible_pairs = visible_pairs(mask, {batch, c.num_heads, queries, keys, keys - queries});
  const double in =
      q_weights + kv_weights + biases * (q_width + k_width + v_width) + (N::has_weights ? 2 * c.head_dim : 0);
  cost.projection = {static_cast<std::int64_t>(in), 2 * (q_rows * q_weights + k_rows * kv_weights),
                     bytes * (in + q_rows * (E + q_width) + k_rows * (c.kv_model + k_width + v_width))};
  cost.score = {0, 2 * cost.visible_pairs * q_width, bytes * (q_rows * q_width + k_rows * k_width)};
  cost.value = {0, 2 * cost.visible_pairs * concat, bytes * (k_rows * v_width + q_rows * concat)};
  const double out = out_weights + (O::has_weights ? biases * E : 0) + (C::has_gates ? c.num_heads : 0);
  cost.output = {static_cast<std::int64_t>(out), 2 * q_rows * out_weights, bytes * (out + q_rows * (concat + y_width))};
  cost.cache_elements = static_cast<std::int64_t>(k_rows * (k_width + v_width));
  cost.activation_elements = q_rows * (q_width + concat) + k_rows * (k_width + v_width);
  cost.crossover_length = (q_weights + kv_weights + out_weights) / (q_width + concat);
  return cost;
}

}  // namespace detail

/// The cost of a layer with an output projection, for any numbers of heads, sizes and lengths, in a scalar of T's size.
/// A layer knows its own: layer.cost(batch, queries, keys).
///
/// Formula   parameters E·Hq·D + E_kv·Hkv·(D + Dv) + Hq·Dv·E (+ biases) · projections 2 per parameter and row ·
///           attention 2·pairs·Hq·(D + Dv) · cache Hkv·(D + Dv) per key
/// Errors    ShapeError if the configuration does not fit together or a size is negative
template <Heads H = GroupedQuery<Dynamic>, class T = float, Mask M = Full>
Cost cost(Config config, Index batch, Index queries, Index keys, const M& mask = {}) {
  if (H::kv_heads(1) == Dynamic && config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  return detail::layer_cost<T, NoNorm, ConcatHeads, LinearOutput>(detail::completed<H>(config), batch, queries, keys,
                                                                  mask);
}

}  // namespace mha::inline v0
