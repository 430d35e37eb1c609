// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>

#include "../../core/check.hpp"
#include "../../core/view.hpp"
#include "../backend.hpp"
#include "../executor.hpp"
#include "../simd/key_chunks.hpp"
#include "../simd/tile_tasks.hpp"
#include "group_plan.hpp"
#include "held_blocks.hpp"
#include "kernels.hpp"
#include "kv_tiles.hpp"
#include "packed_call.hpp"
#include "product_unit.hpp"
#include "query_tile.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

using simd::Pass;
using simd::TileTask;

/// A call's groups of tiles, computed one by one.
template <bool WithValues, class T, class Stored, class Threads> class TileGroups {
 public:
  using Tile = QueryTile<T, Stored>;
  using Tiles = std::optional<Tile>[GroupPlan::most_together];

  TileGroups(const AnyCall<T, Stored>& call, const Kernels& kernels, Workspace& workspace, const Threads& threads)
      : call_(call),
        kernels_(kernels),
        threads_(threads),
        value_dim_(WithValues ? call.value_dim : 0),
        frame_(workspace),
        held_(call, frame_),
        plan_(plan_of(std::min(held_.most() * value_block, call.shape.keys))),
        tasks_(call.shape.batch, frame_) {
    share();
    const std::int64_t packs = held_.all() * call.kv_heads;
    require_most(tasks_.tiles(), " groups of query tiles");
    require_most(packs, " blocks of keys");
    packs_ = static_cast<Index>(packs);
    if (tasks_.tiles() == 0) return;
    packed_.emplace(call, held_, WithValues, plan_.workers == 1);
    if (call.kv.room().keys > 0) reserve(workspace);
    packed_->take(call, frame_);
    scratch_ = frame_.template take<Worker>(static_cast<std::size_t>(plan_.workers));
    const bool has_chunks = WithValues && simd::most_chunks(call) > 1;
    for (Index w = 0; w < plan_.workers; ++w) take_worker(frame_, plan_, has_chunks, scratch_[w]);
  }

  const HeldBlocks& held() const { return held_; }

  /// f(tiles, how many) for every group, of each head the heaviest first.
  template <class F> void run(F&& f) {
    if (tasks_.tiles() == 0) return;
    if (plan_.workers == 1) return run_head_by_head(f);
    pack_all();
    for_each_task(Pass::attend, [&](const Group& group, const TileTask&, Tiles& tiles) { f(tiles, group.tiles); });
  }
  /// The same for groups whose keys are not shared. For the others part(tiles, how many, first key, end) for every
  /// chunk of keys, which leaves the chunk's part in the tiles, then merged(tiles, how many), whose tiles have been
  /// given all their chunks.
  template <class F, class G, class H> void run(F&& whole, G&& part, H&& merged) {
    if (tasks_.parts() == 0) return run(whole);
    TilePart* const parts = take_parts();
    pack_all();
    for_each_task(Pass::attend, [&](const Group& group, const TileTask& task, Tiles& tiles) {
      if (task.parts == 0) return whole(tiles, group.tiles);
      const Index chunk = simd::held_chunk(call_, group.b, task.chunk);
      TilePart* const to = parts + task.part(task.chunk) * plan_.together;
      for (Index i = 0; i < group.tiles; ++i) tiles[i]->begin(to[i]);
      part(tiles, group.tiles, simd::chunk_begin(chunk), simd::chunk_end(chunk, call_.keys(group.b)));
      for (Index i = 0; i < group.tiles; ++i) {
        tiles[i]->count();
        to[i] = tiles[i]->part();
      }
    });
    for_each_task(Pass::merge, [&](const Group& group, const TileTask& task, Tiles& tiles) {
      for (Index i = 0; i < group.tiles; ++i)
        for (Index n = 0; n < task.parts; ++n) tiles[i]->add_chunk(parts[task.part(n) * plan_.together + i]);
      merged(tiles, group.tiles);
    });
  }

 private:
  struct Worker {
    BlockScratch block;
    bfloat16* pack;
    TileState* states;
    KvTiles kv;  ///< of its tiles
  };
  /// Tiles of the rows [first, ...) of the heads [head, head + heads).
  struct Group {
    Index b, head, heads, first, tiles;
  };

  std::int64_t groups_of_all(const GroupPlan& plan) const {
    std::int64_t n = 0;
    for (Index b = 0; b < call_.shape.batch; ++b) n += plan.groups(call_.queries(b));
    return n;
  }

  static void require_most(std::int64_t n, const char* what) {
    constexpr Index most = std::numeric_limits<Index>::max();
    require(n <= most, "attention: ", n, what, ", the limit is ", most);
  }

  /// Cuts sequences into groups, and has workers share keys where whole groups would leave some idle: of all groups
  /// where these are few, else of those that are more than half of a worker's share.
  void share() {
    const AnyCall<T, Stored>& call = call_;
    const auto groups = [&](const GroupPlan& plan) { return groups_of_all(plan); };
    const auto parts = [&](const GroupPlan& plan) {
      std::int64_t n = 0;
      for (Index b = 0; b < call.shape.batch; ++b) n += seen_parts(plan, b);
      return n;
    };
    if constexpr (WithValues) plan_.share_chunks(simd::most_chunks(call), groups, parts);
    tasks_.cut([&](Index b) { return plan_.groups(call.queries(b)); });
    if (!WithValues || plan_.workers == 1) return;
    if (plan_.chunks > 1)
      tasks_.share(call, [](Index) { return true; });
    else if (!simd::too_few_tiles(tasks_.tiles(), plan_.workers))
      tasks_.share_longest(call, plan_.workers, [&](Index b) { return plan_.most_tiles(call.queries(b)); });
  }

  /// Of sequence b: the pairs of a group and a chunk of its keys, where a query sees one of them.
  std::int64_t seen_parts(const GroupPlan& plan, Index b) const {
    const Index queries = call_.queries(b), keys = call_.keys(b);
    if (queries == 0) return 0;
    const TileLanes all{b, 0, call_.shape.heads, 0, queries, call_.position(b, 0)};
    const auto seen = [&](Index begin, Index end) {
      for (Index h = 0; h < all.heads; ++h)
        if (call_.mask.visibility(all.of(h), begin, end) != TileVisibility::none) return true;
      return false;
    };
    std::int64_t chunks = 0;
    for (Index n = 0; n < plan.chunks; ++n) {
      const Index chunk = simd::held_chunk(call_, b, n);
      if (simd::chunk_begin(chunk) >= keys) break;
      chunks += seen(simd::chunk_begin(chunk), simd::chunk_end(chunk, keys)) ? 1 : 0;
    }
    return chunks * plan.groups(queries);
  }

  /// f(group, task, its tiles) for the tasks of a pass, among the workers.
  template <class F> void for_each_task(Pass pass, F&& f) {
    threads_.run(static_cast<Index>(tasks_.count(pass)), [&](Index i, Index worker) {
      const UnitScope unit(kernels_.product.unit);
      const TileTask task = tasks_.task(pass, i);
      const Group group = group_of(task);
      Tiles tiles;
      make(group, worker, -plan_.rows(), tiles);
      f(group, task, tiles);
    });
  }

  template <class F> void run_head_by_head(F&& f) {
    const UnitScope unit(kernels_.product.unit);
    for (Index b = 0; b < call_.shape.batch; ++b) {
      const Index queries = call_.queries(b);
      for (Index g = 0; g < call_.kv_heads; ++g) {
        packed_->turn_to(call_, b, g);
        for (Index i = 0; i < held_.count(b); ++i) pack(b, g, i, 0);
        for (Index i = 0; i < plan_.head_tiles(queries); ++i)
          for (Index t = 0; t < plan_.query_groups(queries); ++t) {
            const Group group = group_of(b, g, i, t);
            Tiles tiles;
            make(group, 0, plan_.rows(), tiles);
            f(tiles, group.tiles);
          }
      }
    }
  }

  Group group_of(const TileTask& task) const {
    const Index queries = call_.queries(task.b), groups = plan_.query_groups(queries),
                head_tiles = plan_.head_tiles(queries), at = task.tile / groups;
    // Late queries of a causal mask see the most keys.
    return group_of(task.b, at / head_tiles, at % head_tiles, groups - 1 - task.tile % groups);
  }
  Group group_of(Index b, Index g, Index head_tile, Index query_group) const {
    const Index queries = call_.queries(b), most = plan_.heads_together(queries), in_ratio = head_tile * most,
                first = query_group * plan_.rows();
    return {b, g * plan_.ratio + in_ratio, std::min(most, plan_.ratio - in_ratio), first,
            plan_.most_tiles(queries - first)};
  }

  void make(const Group& group, Index worker, Index to_next, Tiles& tiles) {
    const Index g = call_.kv_head(group.head), lanes = plan_.lanes;
    Worker& at = scratch_[worker];
    at.kv = packed_->at(group.b, g);
    for (Index i = 0; i < group.tiles; ++i) {
      const Index row = group.first + i * lanes;
      const TileLanes of{group.b,
                         group.head,
                         group.heads,
                         row,
                         std::min(lanes, call_.queries(group.b) - row),
                         call_.position(group.b, row)};
      tiles[i].emplace(call_, kernels_, at.kv, at.block, at.states[i], of, to_next);
    }
  }

  void pack_all() {
    threads_.run(packs_, [&](Index t, Index worker) {
      const Index b = held_.sequence_of(t / call_.kv_heads);
      const auto at = static_cast<Index>(t - held_.before(b) * call_.kv_heads);
      pack(b, at / held_.count(b), at % held_.count(b), worker);
    });
  }
  /// The i-th block of a head that is held.
  void pack(Index b, Index g, Index i, Index worker) {
    const Index n = call_.keys(b), first = held_.key(b, i);
    for (Index k = first; k < std::min(n, first + value_block); k += key_block) {
      if (call_.kv.held(b, k, std::min(n, k + key_block)) == std::min(n, k + key_block)) continue;  // all dropped
      const Index j = (k - first) / key_block;
      if (bfloat16* const rows = packed_->keys_at(b, g, i, j))
        pack_keys(call_.kv, b, g, k, n, kernels_.level, call_.head_dim, rows);
      if constexpr (WithValues)
        if (const PackedValues values = packed_->values_at(b, g, i, j); values.tiles != nullptr)
          pack_values(call_.kv, b, g, k, n, kernels_.level, value_dim_, values, scratch_[worker].pack);
    }
  }

  GroupPlan plan_of(Index keys) const {
    CallShape shape = call_.shape;
    shape.keys = keys;
    return {shape, call_.kv_heads, call_.head_dim, value_dim_, kernels_.product, threads_.workers()};
  }

  /// Memory from a frame of any kind.
  template <class Frame> void take_worker(Frame& frame, const GroupPlan& plan, bool has_chunks, Worker& to) const {
    to.block = BlockScratch(frame, plan.lanes, call_.head_dim, value_dim_);
    to.pack = frame.template take<bfloat16>(pack_scratch(value_dim_));
    to.states = frame.template take<TileState>(static_cast<std::size_t>(plan.together));
    for (Index i = 0; i < plan.together; ++i) {
      const TileState state(frame, plan.lanes, call_.head_dim, value_dim_, has_chunks);
      if (to.states != nullptr) to.states[i] = state;
    }
  }

  /// Of the groups whose keys are shared.
  TilePart* take_parts() {
    TilePart* const parts = frame_.template take<TilePart>(static_cast<std::size_t>(tasks_.parts()) *
                                                           static_cast<std::size_t>(plan_.together));
    for (std::int64_t i = 0; i < tasks_.count(Pass::merge); ++i) {
      const TileTask task = tasks_.task(Pass::merge, i);
      const Index tiles = group_of(task).tiles;
      for (Index n = 0; n < task.parts; ++n)
        for (Index t = 0; t < tiles; ++t)
          parts[task.part(n) * plan_.together + t] = take_part(frame_, plan_.lanes, value_dim_);
    }
    return parts;
  }

  /// Has the workspace keep what calls will take as the source grows, so that none of them allocates.
  void reserve(Workspace& workspace) const {
    const KvRoom& room = call_.kv.room();
    const GroupPlan later = plan_of(held_.room() * value_block);
    const Index chunks = simd::all_chunks(room.keys) + (call_.kv.drops() ? 2 : 0);
    SizeOfFrame worker, part, lists;
    Worker unused;
    take_worker(worker, later, chunks > 1, unused);
    lists.take<Worker>(static_cast<std::size_t>(later.workers));
    std::size_t bytes =
        worker.bytes() * static_cast<std::size_t>(later.workers) + packed_->room(call_.shape.batch, later.workers == 1);
    if (WithValues && later.workers > 1 && chunks > 1) {
      std::int64_t groups = 0, tiles = 0;  // that are shared at most
      Index most = 0;
      for (Index b = 0; b < call_.shape.batch; ++b) {
        const Index of_group = later.most_tiles(call_.queries(b));
        groups += later.groups(call_.queries(b));
        tiles += later.groups(call_.queries(b)) * of_group;
        most = std::max(most, of_group);
      }
      GroupPlan whole_heads = later;
      whole_heads.shares = 1;
      if (!simd::too_few_tiles(groups_of_all(whole_heads), later.workers)) {
        groups = call_.shape.batch > 1 ? simd::TileTasks::most_longest(later.workers) : 0;
        tiles = groups * most;
      }
      take_part(part, later.lanes, value_dim_);
      lists.take<TilePart>(static_cast<std::size_t>(groups * later.together * chunks));
      bytes += static_cast<std::size_t>(tiles * chunks) * part.bytes();
    }
    Workspace::Frame frame(workspace);
    MHA_TRY { frame.template take<std::byte>(bytes + lists.bytes()); }
    MHA_CATCH(const std::bad_alloc&) {}  // this call may do with less
  }

  const AnyCall<T, Stored>& call_;
  const Kernels& kernels_;
  const Threads& threads_;
  const Index value_dim_;
  Workspace::Frame frame_;
  const HeldBlocks held_;
  GroupPlan plan_;
  simd::TileTasks tasks_;  ///< of groups
  Index packs_ = 0;        ///< blocks of all heads
  std::optional<PackedCall> packed_;
  Worker* scratch_ = nullptr;
};

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
/// Bits      chunks of keys are summed apart and merged in their order in every call, so that workers may share
///           them
/// Cost      2·Hq·(visible pairs)·(D + Dv) FLOP; memory for the keys and values that are packed, of whole blocks of 256
///           of which a key is held, as many as the source has room for, and where workers share chunks Dv floats for
///           each lane of a tile and chunk, of fewer than 4 groups of tiles a worker
template <class T, class Stored, class Threads>
void attend(const AnyCall<T, Stored>& call, const Kernels& kernels, Workspace& workspace, const Threads& threads) {
  TileGroups<true, T, Stored, Threads> groups(call, kernels, workspace, threads);
  const HeldBlocks& held = groups.held();
  const auto attend = [&](auto& tiles, Index count, Index begin, Index end) {
    const Index b = tiles[0]->sequence();
    for (Index n = held.from(b, begin); n < held.count(b) && held.key(b, n) < end; ++n)
      for (Index i = 0; i < count; ++i) tiles[i]->attend(held.key(b, n), n * value_block);
  };
  const auto finish = [](auto& tiles, Index count) {
    for (Index i = 0; i < count; ++i) tiles[i]->finish();
  };
  const auto whole = [&](auto& tiles, Index count) {
    const Index keys = tiles[0]->keys(), b = tiles[0]->sequence();
    for (Index n = 0, end = 0; n < held.count(b); n = held.from(b, end)) {
      if (n > 0)
        for (Index i = 0; i < count; ++i) tiles[i]->next_chunk();
      const Index chunk = simd::chunk_of(held.key(b, n));
      end = simd::chunk_end(chunk, keys);
      attend(tiles, count, simd::chunk_begin(chunk), end);
    }
    finish(tiles, count);
  };
  groups.run(whole, attend, finish);
}

/// The softmax itself, (B, Hq, Lq, Lk).
template <class T, class Stored, class Threads>
void weights(const AnyCall<T, Stored>& call, const Kernels& kernels, const TensorView<float, 4>& to,
             Workspace& workspace, const Threads& threads) {
  TileGroups<false, T, Stored, Threads> groups(call, kernels, workspace, threads);
  groups.run([&](auto& tiles, Index count) {
    for (Index i = 0; i < count; ++i) tiles[i]->weights(to, groups.held());
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
