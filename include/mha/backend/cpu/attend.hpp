// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../executor.hpp"
#include "tile.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// How a call is cut into tiles: queries of one head fill a tile; where a head has few, the heads that share keys and
/// values join, so that every key and value is read once for all of them.
struct Tiling {
  Index lanes;           ///< the most rows of a tile
  Index queries, heads;  ///< of one tile, at most
  Index query_tiles, head_tiles, kv_heads, group;
  std::int64_t tiles;
  bool parallel;

  template <class Call> Tiling(const Call& call, IsaLevel level) {
    using A = Accumulator<typename Call::Scalar>;
    const Index most = simd::widest_tile<A>(level);
    kv_heads = call.kv_heads;
    group = call.shape.heads / kv_heads;
    queries = std::min(call.shape.queries, most);
    heads = std::clamp<Index>(most / std::max<Index>(queries, 1), 1, group);
    lanes = simd::tile_kernels<A>(level, queries * heads).lanes;
    query_tiles = queries == 0 ? 0 : blocks_of(call.shape.queries, queries);
    head_tiles = blocks_of(group, heads);
    tiles = std::int64_t{call.shape.batch} * kv_heads * head_tiles * query_tiles;
    constexpr double enough_flop = 2e6;
    const double flop = 2.0 * call.shape.batch * call.shape.heads * call.shape.queries * call.shape.keys *
                        (double(call.head_dim) + call.value_dim);
    parallel = flop >= enough_flop;
  }

  /// Tile t, the heaviest first: late queries of a causal mask see the most keys. Of a short sequence it may be empty.
  template <class Call> TileRows rows(const Call& call, Index t) const {
    const Index first = (query_tiles - 1 - t % query_tiles) * queries;
    const Index head_tile = t / query_tiles % head_tiles, rest = t / query_tiles / head_tiles;
    const Index b = rest / kv_heads, in_group = head_tile * heads;
    return {b, rest % kv_heads * group + in_group, std::min(heads, group - in_group), first,
            std::clamp<Index>(call.queries(b) - first, 0, queries)};
  }
};

/// What is done with a tile in a task: a reference to a function object, so that the loop over tiles is compiled once.
template <class T, class Stored> class TileTask {
 public:
  template <class F>
  TileTask(const F& f)
      : f_(&f),
        run_([](const void* g, QueryTile<T, Stored>& tile, Index task) { (*static_cast<const F*>(g))(tile, task); }) {}

  void operator()(QueryTile<T, Stored>& tile, Index task) const { run_(f_, tile, task); }

 private:
  const void* f_;
  void (*run_)(const void*, QueryTile<T, Stored>&, Index);
};

/// f(tile, task) for every tile of the call, shared among the executor's workers.
template <class T, class Stored, class Threads>
void for_each_tile(const AnyCall<T, Stored>& call, const Tiling& tiling, IsaLevel level, Index tasks_per_tile,
                   Workspace& workspace, const Threads& threads, const TileTask<T, Stored>& f) {
  using A = Accumulator<T>;
  const std::int64_t tasks = tiling.tiles * tasks_per_tile;
  require(tasks <= std::numeric_limits<Index>::max(), "attention: ", tasks, " query tiles, the limit is ",
          std::numeric_limits<Index>::max());
  const bool parallel = tiling.parallel && tasks > 1;
  const Index workers = parallel ? threads.workers() : 1;
  auto frame = workspace.frame();
  TileScratch<A>* const scratch = frame.template take<TileScratch<A>>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w)
    scratch[w] = TileScratch<A>(frame, tiling.lanes, call.head_dim, call.value_dim, !std::is_same_v<Stored, A>);
  const auto task = [&](Index t, Index worker) MHA_NO_INLINE {
    const TileRows rows = tiling.rows(call, t / tasks_per_tile);
    if (rows.count == 0) return;  // a short sequence of a ragged batch
    QueryTile<T, Stored> query_tile(call, level, scratch[worker], rows);
    f(query_tile, t);
  };
  run_tasks(!parallel, threads, static_cast<Index>(tasks), task);
}

/// The n-th chunk of sequence b's keys that is not all dropped; where there is none, one beyond its keys.
template <class T, class Stored> Index held_chunk(const AnyCall<T, Stored>& call, Index b, Index n) {
  if (!call.kv.drops()) return n;
  const Index keys = call.keys(b);
  Index chunk = -1;
  do chunk = call.kv.held(b, (chunk + 1) * key_chunk, keys) / key_chunk;
  while (n-- > 0 && chunk * key_chunk < keys);
  return chunk;
}

/// The most chunks of a sequence's keys that are not all dropped; 1 at least.
template <class T, class Stored> Index most_chunks(const AnyCall<T, Stored>& call) {
  const Index all = std::max<Index>(1, blocks_of(call.shape.keys, key_chunk));
  if (!call.kv.drops()) return all;
  Index most = 1;
  for (Index b = 0; b < call.shape.batch; ++b)
    while (most < all && held_chunk(call, b, most) * key_chunk < call.keys(b)) ++most;
  return most;
}

/// Attention; the keys are shared among the workers too where there are fewer tiles than would keep them busy.
template <class T, class Stored, class Threads>
void attend(const AnyCall<T, Stored>& call, IsaLevel level, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  const Tiling tiling(call, level);
  if (tiling.tiles == 0) return;
  constexpr Index tiles_per_worker = 4;
  const Index chunks = most_chunks(call);
  if (!tiling.parallel || chunks == 1 || tiling.tiles >= std::int64_t{tiles_per_worker} * threads.workers()) {
    for_each_tile<T, Stored>(call, tiling, level, 1, workspace, threads, [](auto& tile, Index) { tile.attend(); });
    return;
  }
  auto frame = workspace.frame();
  const std::size_t parts = static_cast<std::size_t>(tiling.tiles) * static_cast<std::size_t>(chunks);
  simd::TileState<A>* const state = frame.template take<simd::TileState<A>>(parts);
  for (std::size_t i = 0; i < parts; ++i) state[i] = take_state<A>(frame, tiling.lanes, call.value_dim);
  for_each_tile<T, Stored>(call, tiling, level, chunks, workspace, threads, [&](auto& tile, Index t) {
    const Index b = tile.rows().b, chunk = held_chunk(call, b, t % chunks);
    if (t % chunks == 0 || chunk * key_chunk < call.keys(b)) tile.attend_chunk(chunk, state[t]);
  });
  for_each_tile<T, Stored>(call, tiling, level, 1, workspace, threads, [&](auto& tile, Index t) {
    simd::TileState<A>* const part = state + std::ptrdiff_t{t} * chunks;
    const Index b = tile.rows().b;
    for (Index n = 1; n < chunks && held_chunk(call, b, n) * key_chunk < call.keys(b); ++n)
      tile.merge(part[0], part[n]);
    tile.finish(part[0]);
  });
}

/// The softmax of the call into `to` (B, Hq, Lq, Lk).
template <class T, class Stored, class Threads>
void weights(const AnyCall<T, Stored>& call, IsaLevel level, const TensorView<Accumulator<T>, 4>& to,
             Workspace& workspace, const Threads& threads) {
  const Tiling tiling(call, level);
  if (tiling.tiles == 0) return;
  for_each_tile<T, Stored>(call, tiling, level, 1, workspace, threads, [&](auto& tile, Index) { tile.weights(to); });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
