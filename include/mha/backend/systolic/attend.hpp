// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "../backend.hpp"
#include "../executor.hpp"
#include "kv_tiles.hpp"
#include "query_tile.hpp"
#include "tile_product.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The keys and values of a call, packed once per sequence and key/value head: all of them, or one head at a time in
/// the same place, which a near cache then keeps.
class PackedCall {
 public:
  /// Memory from `frame`, nothing packed yet. Values that the source keeps in tiles are not packed.
  template <class T, class Stored>
  PackedCall(const AnyCall<T, Stored>& call, Workspace::Frame& frame, bool with_values, bool one_at_a_time)
      : heads_(call.kv_heads), head_dim_(call.head_dim), value_dim_(with_values ? call.value_dim : 0) {
    bool packs_values = false;
    for (Index b = 0; b < call.shape.batch; ++b)
      packs_values = packs_values || call.kv.value_tiles(b, 0).tiles == nullptr;
    std::size_t rows = KvTiles::padded(call.shape.keys);
    if (!one_at_a_time) {
      first_ = frame.take<std::size_t>(static_cast<std::size_t>(call.shape.batch) + 1);
      first_[0] = 0;
      for (Index b = 0; b < call.shape.batch; ++b)
        first_[b + 1] = first_[b] + static_cast<std::size_t>(heads_) * KvTiles::padded(call.keys(b));
      rows = first_[call.shape.batch];
    }
    keys_ = frame.take<bfloat16>(rows * static_cast<std::size_t>(round_up(head_dim_, tile_depth)));
    values_ =
        frame.take<bfloat16>((packs_values ? rows : 0) * static_cast<std::size_t>(round_up(value_dim_, tile_side)));
    key_rows_ = frame.take<KeyRows>(rows / key_block);
    non_finite_ = frame.take<std::uint8_t>(rows / key_block);
    std::fill_n(non_finite_, rows / key_block, std::uint8_t{0});
  }

  /// With the values of `kept`, if they are.
  KvTiles at(Index b, Index g, const ValueTiles& kept) const {
    const std::size_t row = first_row(b, g);
    const PackedValues packed = values_at(b, g);
    return {keys_ + row * static_cast<std::size_t>(round_up(head_dim_, tile_depth)),
            kept.tiles != nullptr ? kept.tiles : packed.values,
            key_rows_ + row / key_block,
            kept.tiles != nullptr ? kept.non_finite : packed.non_finite,
            head_dim_,
            value_dim_};
  }
  /// Where values that are not kept are packed.
  PackedValues values_at(Index b, Index g) const {
    const std::size_t row = first_row(b, g);
    return {values_ + row * static_cast<std::size_t>(round_up(value_dim_, tile_side)), non_finite_ + row / key_block};
  }

 private:
  std::size_t first_row(Index b, Index g) const {
    if (first_ == nullptr) return 0;
    const std::size_t per_head = (first_[b + 1] - first_[b]) / static_cast<std::size_t>(heads_);
    return first_[b] + static_cast<std::size_t>(g) * per_head;
  }

  Index heads_, head_dim_, value_dim_;
  std::size_t* first_ = nullptr;  ///< row of sequence b, each of its heads padded to whole value blocks
  bfloat16 *keys_, *values_;
  KeyRows* key_rows_;
  std::uint8_t* non_finite_;
};

/// Below this much work a call stays on the calling thread.
inline constexpr double enough_flop = 1e7;
/// Packed keys and values of a head from this size on are read by several tiles of queries in turn, block by block.
inline constexpr std::size_t near_bytes = 1u << 20;

/// f(tiles of queries that go through the keys together, how many) for all of them, the heaviest first, shared among
/// the executor's workers. Where queries leave lanes of a tile empty, heads of a group share it.
template <bool WithValues, class T, class Stored, class Threads, class F>
void for_each_group(const AnyCall<T, Stored>& call, const Kernels& kernels, Workspace& workspace,
                    const Threads& threads, F&& f) {
  using Tile = QueryTile<T, Stored>;
  constexpr Index most_together = 8;
  const Index lanes = kernels.product.lanes, value_dim = WithValues ? call.value_dim : 0;
  const std::int64_t pairs = std::int64_t{call.shape.batch} * call.shape.heads;
  const double flop =
      2.0 * static_cast<double>(pairs) * call.shape.queries * call.shape.keys * (double(call.head_dim) + value_dim);
  const bool parallel = flop >= enough_flop;
  const Index workers = parallel ? threads.workers() : 1;
  const std::size_t bytes =
      2 * (KvTiles::key_size(call.shape.keys, call.head_dim) + KvTiles::value_size(call.shape.keys, value_dim));
  // Workers share out groups: small ones, so that none is idle at the end.
  const Index at_most = workers == 1 ? most_together : most_together / 2;
  const Index together = bytes >= near_bytes ? at_most : 1, group = together * lanes;
  const Index groups = blocks_of(call.shape.queries, group);
  const Index chunks = blocks_of(call.shape.keys, value_block);
  const std::int64_t tasks = pairs * groups, packs = std::int64_t{call.shape.batch} * call.kv_heads * chunks;
  require(std::max(tasks, packs) <= std::numeric_limits<Index>::max(), "attention: ", std::max(tasks, packs),
          " tiles, the limit is ", std::numeric_limits<Index>::max());
  if (tasks == 0) return;

  // The heads of a group read their keys together, unless a worker would have none.
  const std::int64_t kv_pairs = std::int64_t{call.shape.batch} * call.kv_heads;
  const Index ratio = call.shape.heads / call.kv_heads;
  const Index shares = static_cast<Index>(std::min<std::int64_t>((workers + kv_pairs - 1) / kv_pairs, ratio));
  const auto heads_together = [&](Index b) {
    return std::min(TileLanes::heads_together(ratio, call.queries(b), lanes), blocks_of(ratio, shares));
  };

  auto frame = workspace.frame();
  const PackedCall packed(call, frame, WithValues, workers == 1);
  struct Worker {
    BlockScratch block;
    bfloat16* pack;
    TileState* states;
  };
  Worker* const scratch = frame.template take<Worker>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w) {
    scratch[w].block = BlockScratch(frame, lanes, call.head_dim, value_dim);
    scratch[w].pack = frame.template take<bfloat16>(pack_scratch(value_dim));
    scratch[w].states = frame.template take<TileState>(static_cast<std::size_t>(together));
    for (Index i = 0; i < together; ++i) scratch[w].states[i] = TileState(frame, lanes, call.head_dim, value_dim);
  }

  const auto kept_values = [&](Index b, Index g) { return WithValues ? call.kv.value_tiles(b, g) : ValueTiles{}; };
  const auto pack = [&](Index b, Index g, Index chunk, Index worker) {
    const Index n = call.keys(b), end = std::min(n, (chunk + 1) * value_block);
    const ValueTiles kept = kept_values(b, g);
    const KvTiles to = packed.at(b, g, kept);
    for (Index k = chunk * value_block; k < end; k += key_block) {
      if (call.kv.held(b, k, std::min(n, k + key_block)) == std::min(n, k + key_block)) continue;  // all dropped
      pack_keys(call.kv, b, g, k, n, kernels.level, to);
      if constexpr (WithValues)
        if (kept.tiles == nullptr)
          pack_values(call.kv, b, g, k, n, kernels.level, to, packed.values_at(b, g), scratch[worker].pack);
    }
  };
  const auto run = [&](Index b, Index h, Index first, Index worker, Index to_next) {
    const Index queries = call.queries(b);
    if (first >= queries) return;  // a short sequence of a ragged batch
    const Index count = std::min(together, blocks_of(queries - first, lanes));
    const Index most_heads = heads_together(b);
    if (h % ratio % most_heads != 0) return;  // in the lanes of an earlier head
    const Index heads = std::min(most_heads, ratio - h % ratio);
    const KvTiles kv = packed.at(b, call.kv_head(h), kept_values(b, call.kv_head(h)));
    std::optional<Tile> tiles[most_together];
    for (Index i = 0; i < count; ++i) {
      const Index row = first + i * lanes;
      const TileLanes of{b, h, heads, row, std::min(lanes, queries - row), call.position(b, row)};
      tiles[i].emplace(call, kernels, kv, scratch[worker].block, scratch[worker].states[i], of, to_next);
    }
    f(tiles, count);
  };

  if (workers == 1) {
    const UnitScope unit(kernels.product.unit);
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index h = 0; h < call.shape.heads; ++h) {
        if (const Index g = call.kv_head(h); h == 0 || g != call.kv_head(h - 1))
          for (Index chunk = 0; chunk < chunks; ++chunk) pack(b, g, chunk, 0);
        for (Index t = 0; t < groups; ++t) run(b, h, t * group, 0, group);
      }
    return;
  }
  threads.run(static_cast<Index>(packs), [&](Index t, Index worker) {
    pack(t / chunks / call.kv_heads, t / chunks % call.kv_heads, t % chunks, worker);
  });
  threads.run(static_cast<Index>(tasks), [&](Index t, Index worker) {
    const UnitScope unit(kernels.product.unit);
    // Late queries of a causal mask see the most keys.
    run(t / groups / call.shape.heads, t / groups % call.shape.heads, (groups - 1 - t % groups) * group, worker,
        -group);
  });
}

/// out = softmax(…) v of a whole call: both products on the array, everything between them in float.
///
/// Formula   what a row adds up is Σ p̃ v / Σ p̃: weights p relative to an anchor (softmax.hpp), as bfloat16 numbers in
///           the numerator and in the denominator alike
/// Numerics  against exact attention over the rounded q, k, v, with w the exact weights and r the exact result,
///             |out − r| ≤ (ε·(Σ w |v| + |r|) + Lk·2⁻²³·Σ w |v|) / (1 − ε) + the rounding to T,
///             ε = 2⁻⁷ + 10⁻⁴ + 2η,  η = (D + 8)·2⁻²⁴·max scale·Σ|q||k|:
///           a weight is within 0.73 % < 2⁻⁷ of its power of two, to either side; a rescale and the logit's own error
///           change it by 10⁻⁴ + 2η, and a common factor of all weights of a row cancels. Tests hold it to that. The
///           log-sum-exp is that of these weights: within ε / (1 − ε) of the exact one. Before the division the weights
///           of 64 keys add up to 2¹⁶ at most: finite values above 2¹¹²·64 / Lk may overflow
/// Cost      2·Hq·(visible pairs)·(D + Dv) FLOP; memory for packed keys and values, rounded up to 256 keys
template <class T, class Stored, class Threads>
void attend(const AnyCall<T, Stored>& call, const Kernels& kernels, Workspace& workspace, const Threads& threads) {
  for_each_group<true>(call, kernels, workspace, threads, [](auto* tiles, Index count) {
    for (Index k = 0; k < tiles[0]->keys(); k += value_block)
      for (Index i = 0; i < count; ++i) tiles[i]->attend(k);
    for (Index i = 0; i < count; ++i) tiles[i]->finish();
  });
}

/// The softmax itself, (B, Hq, Lq, Lk).
template <class T, class Stored, class Threads>
void weights(const AnyCall<T, Stored>& call, const Kernels& kernels, const TensorView<float, 4>& to,
             Workspace& workspace, const Threads& threads) {
  for_each_group<false>(call, kernels, workspace, threads, [&](auto* tiles, Index count) {
    for (Index i = 0; i < count; ++i) tiles[i]->weights(to);
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
