// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../policy/mask.hpp"
#include "../policy/mask/positional.hpp"
#include "config.hpp"

namespace mha::inline v0 {

/// What a layer and one call of it cost. A multiplication with its addition counts as 2 FLOP.
struct Cost {
  std::int64_t parameters = 0;      ///< numbers, biases included
  double projection_flop = 0;       ///< Q, K and V from their rows
  double score_flop = 0;            ///< q·k of the visible pairs
  double value_flop = 0;            ///< weights · v of the visible pairs
  double output_flop = 0;           ///< back to d_model
  double visible_pairs = 0;         ///< (query, key) pairs that the mask shows, summed over the batch, per head
  std::int64_t cache_elements = 0;  ///< K and V of all keys: what a cache holds
  double activation_elements = 0;   ///< Q, K, V and the heads; Lq × Lk is not among them
  double crossover_length = 0;  ///< self-attention without a mask costs more than the projections beyond this length

  double attention_flop() const { return score_flop + value_flop; }
  double total_flop() const { return projection_flop + attention_flop() + output_flop; }
};

/// How many (query, key) pairs of a call a mask shows, counted per head 0 and summed over the batch.
///
/// Cost      one classification per tile; only partial tiles are counted pair by pair
template <Mask M> double visible_pairs(const M& mask, const CallShape& shape) {
  constexpr Index side = 64;
  const auto ready = mha::prepared(mask, shape);
  double pairs = 0;
  for (Index b = 0; b < shape.batch; ++b)
    for (Index i = 0; i < shape.queries; i += side)
      for (Index k = 0; k < shape.keys; k += side) {
        const Index q_begin = shape.origin[b] + i, q_end = shape.origin[b] + std::min(i + side, shape.queries);
        const Index k_end = std::min(k + side, shape.keys);
        const TileVisibility seen = tile(ready, b, 0, q_begin, q_end, k, k_end);
        if (seen == TileVisibility::full) pairs += double(q_end - q_begin) * (k_end - k);
        if (seen != TileVisibility::partial) continue;
        for (Index q = q_begin; q < q_end; ++q)
          for (Index j = k; j < k_end; ++j) pairs += ready(b, 0, q, j) ? 1 : 0;
      }
  return pairs;
}

/// The cost of a layer with an output projection, for any numbers of heads, sizes and lengths.
///
/// Formula   parameters E·Hq·D + E_kv·Hkv·(D + Dv) + Hq·Dv·E (+ biases) · projections 2 per parameter and row ·
///           attention 2·pairs·Hq·(D + Dv) · cache Hkv·(D + Dv) per key
/// Errors    ShapeError if the configuration does not fit together
template <Heads H = GroupedQuery<Dynamic>, Mask M = Full>
Cost cost(Config config, Index batch, Index queries, Index keys, const M& mask = {}) {
  if (H::kv_heads(1) == Dynamic && config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  const Config c = detail::completed<H>(config);
  const double E = c.d_model, q_rows = double(batch) * queries, k_rows = double(batch) * keys;
  const double q_width = c.query_width(), kv_width = double(c.key_width()) + c.value_width();
  const double heads_width = double(c.num_heads) * c.value_dim;
  Cost cost;
  cost.parameters = static_cast<std::int64_t>(E * q_width + c.kv_model * kv_width + heads_width * E +
                                              (c.bias ? q_width + kv_width + E : 0));
  cost.projection_flop = 2 * (q_rows * E * q_width + k_rows * c.kv_model * kv_width);
  cost.output_flop = 2 * q_rows * heads_width * E;
  cost.visible_pairs = visible_pairs(mask, {batch, c.num_heads, queries, keys, keys - queries});
  cost.score_flop = 2 * cost.visible_pairs * q_width;
  cost.value_flop = 2 * cost.visible_pairs * heads_width;
  cost.cache_elements = static_cast<std::int64_t>(k_rows * kv_width);
  cost.activation_elements = q_rows * (q_width + heads_width) + k_rows * kv_width;
  cost.crossover_length = (E * q_width + c.kv_model * kv_width + heads_width * E) / (q_width + heads_width);
  return cost;
}

}  // namespace mha::inline v0
