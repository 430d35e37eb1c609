// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>

#include "../../cache/any_kv.hpp"
#include "../../core/check.hpp"
#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../executor.hpp"
#include "../simd/isa.hpp"
#include "../simd/key_chunks.hpp"
#include "../simd/tile_lanes.hpp"
#include "../simd/tile_tasks.hpp"
#include "near_kv.hpp"
#include "tile.hpp"
#include "tile_keys.hpp"
#include "tile_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// How the work of a sequence is cut into tiles: queries of one head fill a tile; where a head has few, the heads that
/// share keys and values join, so that every key and value is read once for all of them.
struct SequenceTiles {
  Index all_queries, group;  ///< and how many heads share keys and values
  Index most;                ///< rows of a tile
  Index queries, heads;      ///< of one tile, at most
  Index query_tiles, head_tiles;

  SequenceTiles(Index of_queries, Index of_group, Index most_rows)
      : all_queries(of_queries),
        group(of_group),
        most(most_rows),
        queries(std::min(all_queries, most)),
        heads(simd::TileLanes::most_heads(group, queries, most)),
        query_tiles(queries == 0 ? 0 : blocks_of(all_queries, queries)),
        head_tiles(blocks_of(group, heads)) {}

  Index rows() const { return queries * heads; }
  std::int64_t tiles() const { return std::int64_t{query_tiles} * head_tiles; }
};

/// Whether so much work is shared among threads.
constexpr bool enough_work(double flop) { return flop >= 2e6; }

/// The most rows of a tile where those of `cut` and their chunks of keys are few tasks. The rows of a key/value head
/// are divided evenly until each worker has some; where whole tiles are fewer than two for each worker, into two, if
/// these fill fewer registers of `width` lanes. Keys are then read more often, but at the same time.
inline Index divided_rows(const SequenceTiles& cut, Index width, Index chunks, std::int64_t tasks, Index workers) {
  const Index rows = cut.all_queries * cut.group;
  if (tasks == 0) return cut.most;
  if (tasks <= workers)
    return blocks_of(rows, static_cast<Index>(cut.tiles()) * blocks_of(workers, static_cast<Index>(tasks)));
  const std::int64_t even = std::int64_t{2} * workers;
  if (chunks > 1 || tasks >= even) return cut.most;
  const auto tiles = static_cast<Index>((cut.tiles() * even + tasks - 1) / tasks);
  const Index fewer = blocks_of(blocks_of(rows, tiles), width) * width;
  return SequenceTiles(cut.all_queries, cut.group, fewer).tiles() <= tiles ? fewer : cut.most;
}

using simd::Pass;
using simd::TileTask;

/// The tiles of a call, each sequence cut by itself: a single token beside a long prompt is cut as it is alone.
class Tiling {
 public:
  Index lanes = 0;  ///< the most of a tile's kernels
  simd::TileTasks tasks;
  double flop_per_key;  ///< if all sequences have as many
  bool parallel;

  template <class Call>
  Tiling(const Call& call, IsaLevel level, Workspace::Frame& frame)
      : tasks(call.shape.batch, frame),
        most_(simd::widest_tile<Accumulator<typename Call::Scalar>>(level)),
        kv_heads_(call.kv_heads),
        group_(call.shape.heads / call.kv_heads) {
    const double flop = 2.0 * call.shape.heads * (double(call.head_dim) + call.value_dim);  // of a query and a key
    double queries = 0, pairs = 0;
    for (Index b = 0; b < call.shape.batch; ++b) {
      queries += call.queries(b);
      pairs += double(call.queries(b)) * call.keys(b);
    }
    flop_per_key = flop * queries;
    parallel = enough_work(flop * pairs);
    cut(call, level);
  }

  std::int64_t tiles() const { return tasks.tiles(); }

  /// Has so many workers share the keys of tiles, where whole tiles would leave workers idle: of all tiles where these
  /// are few, else of those that read more than half of a worker's share. Where tasks are few all the same, tiles are
  /// divided.
  template <class Call> void share(const Call& call, IsaLevel level, Index workers) {
    if (!parallel || workers == 1) return;
    if (!simd::too_few_tiles(tiles(), workers)) return tasks.share_longest(call, workers, [](Index) { return 1; });
    const Index chunks = simd::most_chunks(call);
    Index b = 0;
    for (Index other = 1; other < call.shape.batch; ++other)
      if (call.queries(other) > call.queries(b)) b = other;
    const Index width = simd::tile_kernels<Accumulator<typename Call::Scalar>>(level, 1).lanes;
    most_ = divided_rows(of(call, b), width, chunks, tiles() * chunks, workers);
    cut(call, level);
    tasks.share(call, [](Index) { return true; });
  }

  /// Whether the tiles of the first key/value head, of all sequences, read about so many keys or more: a key counts
  /// once for each tile that reads it. Of many tiles some are asked, which count for their neighbours.
  template <class Call> bool reads_at_least(const Call& call, double keys) const {
    constexpr std::int64_t asked = 64;
    if (tiles() > std::numeric_limits<Index>::max()) return false;  // the call is refused
    const std::int64_t every = std::max<std::int64_t>(tiles() / kv_heads_ / asked, 1);
    keys /= static_cast<double>(every);
    std::int64_t next = every / 2;  // among the tiles from those of sequence b on
    for (Index b = 0; b < call.shape.batch; ++b) {
      const std::int64_t of_head = of(call, b).tiles();
      for (; next < of_head; next += every) {
        const TileKeys<Call> seen(call, rows(call, b, static_cast<Index>(next)), smallest_gap);
        for (Index k = 0; k < seen.count(); k += key_block)
          for (const simd::KeyRange& range : seen.segments(k, std::min(k + key_block, seen.count())))
            keys -= range.end - range.begin;
        if (keys <= 0) return true;
      }
      next -= of_head;
    }
    return false;
  }

  /// Tile t of sequence b, of each key/value head the heaviest first: late queries of a causal mask see the most keys.
  template <class Call> simd::TileLanes rows(const Call& call, Index b, Index t) const {
    const SequenceTiles cut = of(call, b);
    const Index first = (cut.query_tiles - 1 - t % cut.query_tiles) * cut.queries;
    const Index head_tile = t / cut.query_tiles % cut.head_tiles, kv_head = t / cut.query_tiles / cut.head_tiles;
    const Index in_group = head_tile * cut.heads;
    return {b,
            kv_head * group_ + in_group,
            std::min(cut.heads, group_ - in_group),
            first,
            std::min(call.queries(b) - first, cut.queries),
            call.position(b, first)};
  }

 private:
  template <class Call> SequenceTiles of(const Call& call, Index b) const { return {call.queries(b), group_, most_}; }
  template <class Call> void cut(const Call& call, IsaLevel level) {
    Index most_rows = 0;
    tasks.cut([&](Index b) {
      const SequenceTiles sequence = of(call, b);
      most_rows = std::max(most_rows, sequence.rows());
      return kv_heads_ * sequence.tiles();
    });
    lanes = simd::tile_kernels<Accumulator<typename Call::Scalar>>(level, most_rows).lanes;
  }

  Index most_, kv_heads_, group_;
};

/// What is done with a tile in a task: a reference to a function object, so that the loop over tiles is compiled once.
template <class T, class Stored> class TileFunction {
 public:
  template <class F>
  TileFunction(const F& f)
      : f_(&f), run_([](const void* g, QueryTile<T, Stored>& tile, const TileTask& task) {
          (*static_cast<const F*>(g))(tile, task);
        }) {}

  void operator()(QueryTile<T, Stored>& tile, const TileTask& task) const { run_(f_, tile, task); }

 private:
  const void* f_;
  void (*run_)(const void*, QueryTile<T, Stored>&, const TileTask&);
};

/// f(tile, task) for the tasks of a pass, shared among the executor's workers.
template <class T, class Stored, class Threads>
void for_each_tile(const AnyCall<T, Stored>& call, const Tiling& tiling, IsaLevel level, Pass pass,
                   Workspace& workspace, const Threads& threads, const TileFunction<T, Stored>& f) {
  using A = Accumulator<T>;
  const std::int64_t tasks = tiling.tasks.count(pass);
  require(tasks <= std::numeric_limits<Index>::max(), "attention: ", tasks, " query tiles, the limit is ",
          std::numeric_limits<Index>::max());
  const bool parallel = tiling.parallel && tasks > 1;
  const Index workers = parallel ? threads.workers() : 1;
  auto frame = workspace.frame();
  TileScratch<A>* const scratch = frame.template take<TileScratch<A>>(static_cast<std::size_t>(workers));
  for (Index w = 0; w < workers; ++w)
    scratch[w] = TileScratch<A>(frame, tiling.lanes, call.head_dim, call.value_dim, !std::is_same_v<Stored, A>);
  const auto run = [&](Index i, Index worker) MHA_NO_INLINE {
    const TileTask task = tiling.tasks.task(pass, i);
    QueryTile<T, Stored> query_tile(call, level, scratch[worker], tiling.rows(call, task.b, task.tile));
    f(query_tile, task);
  };
  run_tasks(!parallel, threads, static_cast<Index>(tasks), run);
}

/// Takes the memory that the call will need once its source has grown to all that it has room for, and gives it back,
/// so that a workspace does not grow with the source. `tiling` is the call's before it is shared.
template <class T, class Stored>
void reserve_growth(const AnyCall<T, Stored>& call, const Tiling& tiling, Index workers, Workspace& workspace) {
  using A = Accumulator<T>;
  const Index keys = call.kv.room().keys;
  bool grows = call.kv.drops();
  for (Index b = 0; b < call.shape.batch; ++b) grows = grows || call.keys(b) < keys;
  if (!grows) return;
  const bool parallel = enough_work(tiling.flop_per_key * std::max(keys, call.shape.keys));
  SizeOfFrame scratch, state, lists, near;
  TileScratch<A>(scratch, tiling.lanes, call.head_dim, call.value_dim, !std::is_same_v<Stored, A>);
  take_state<A>(state, tiling.lanes, call.value_dim);
  const std::size_t used = static_cast<std::size_t>(parallel ? workers : 1);
  const std::int64_t chunks = simd::all_chunks(keys) + (call.kv.drops() ? 2 : 0);
  std::size_t parts = 0;
  if (parallel && workers > 1 && chunks > 1) {
    // Tiles are divided where they and their chunks are fewer than workers, into fewer than twice as many.
    if (simd::too_few_tiles(tiling.tiles(), workers))
      parts = static_cast<std::size_t>(std::max(tiling.tiles() * chunks, std::int64_t{2} * workers));
    else if (call.shape.batch > 1)
      parts = static_cast<std::size_t>(simd::TileTasks::most_longest(workers) * chunks);
  }
  lists.take<TileScratch<A>>(used);
  lists.take<simd::TileState<A>>(parts);
  NearKv<Stored, AnyCall<T, Stored>>::take_growth(call, tiling.tiles(), near);
  auto frame = workspace.frame();
  MHA_TRY { frame.take<std::byte>(lists.bytes() + near.bytes() + used * scratch.bytes() + parts * state.bytes()); }
  MHA_CATCH(const std::bad_alloc&) {}  // this call does without
}

/// Every tile; the keys are shared among the workers too where whole tiles would not keep them busy.
template <class T, class Stored, class Threads>
void attend_tiles(const AnyCall<T, Stored>& call, Tiling& tiling, IsaLevel level, Workspace& workspace,
                  const Threads& threads) {
  using A = Accumulator<T>;
  auto frame = workspace.frame();
  tiling.share(call, level, threads.workers());
  const auto parts = static_cast<std::size_t>(tiling.tasks.parts());
  simd::TileState<A>* const state = frame.template take<simd::TileState<A>>(parts);
  for (std::size_t i = 0; i < parts; ++i) state[i] = take_state<A>(frame, tiling.lanes, call.value_dim);
  for_each_tile<T, Stored>(call, tiling, level, Pass::attend, workspace, threads, [&](auto& tile, const auto& task) {
    if (task.parts == 0) return tile.attend();
    tile.attend_chunk(simd::held_chunk(call, task.b, task.chunk), state[task.part(task.chunk)]);
  });
  if (parts == 0) return;
  for_each_tile<T, Stored>(call, tiling, level, Pass::merge, workspace, threads, [&](auto& tile, const auto& task) {
    const simd::TileState<A>& total = state[task.part(0)];
    for (Index n = 1; n < task.parts; ++n) tile.merge(total, state[task.part(n)]);
    tile.finish(total);
  });
}

/// Attention.
template <class T, class Stored, class Threads>
void attend(const AnyCall<T, Stored>& call, IsaLevel level, Workspace& workspace, const Threads& threads) {
  auto frame = workspace.frame();
  Tiling tiling(call, level, frame);
  if (tiling.tiles() == 0) return;
  reserve_growth<T, Stored>(call, tiling, threads.workers(), workspace);
  const NearKv<Stored, AnyCall<T, Stored>> near(
      call, tiling.tiles(), [&](double keys) { return tiling.reads_at_least(call, keys); }, frame);
  if (!near.exists()) return attend_tiles<T, Stored>(call, tiling, level, workspace, threads);
  run_tasks(!tiling.parallel, threads, near.heads(), [&](Index head, Index) { near.copy(head); });
  AnyCall<T, Stored> of_near = call;
  of_near.kv = AnyKv<Stored>(near);
  attend_tiles<T, Stored>(of_near, tiling, level, workspace, threads);
}

/// The softmax of the call into `to` (B, Hq, Lq, Lk).
template <class T, class Stored, class Threads>
void weights(const AnyCall<T, Stored>& call, IsaLevel level, const TensorView<Accumulator<T>, 4>& to,
             Workspace& workspace, const Threads& threads) {
  auto frame = workspace.frame();
  const Tiling tiling(call, level, frame);
  if (tiling.tiles() == 0) return;
  for_each_tile<T, Stored>(call, tiling, level, Pass::attend, workspace, threads,
                           [&](auto& tile, const auto&) { tile.weights(to); });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
