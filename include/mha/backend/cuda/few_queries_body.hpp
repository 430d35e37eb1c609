// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "../../policy/mask.hpp"
#include "few_tiles.hpp"
#include "forward_shape.hpp"
#include "machine.hpp"
#include "split.hpp"
#include "tiles.hpp"
#include "warp_tile.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// A block of few_queries_body: four warps that share a set of rows and take turns at tiles of its keys, each through a
/// ring of panels of its own, alternately of keys and of values.
///
/// Cost      700 ns of latency at 4.3 TB/s are 3 MB under way on an H200, 23 KiB for each of its 132 multiprocessors. A
///           warp has all panels of its ring under way but the one it reads: 32 to 68 KiB a block where two fit into
///           the shared memory of a multiprocessor, 64 KiB where one does
template <class Tile_> struct FewShape {
  using Tile = Tile_;
  using Number = typename Tile::Number;
  static constexpr int warps = 4, threads = warps * warp_size, rows = Tile::rows, keys = Tile::keys;
  static constexpr int blocks_per_multiprocessor = 2;  ///< for __launch_bounds__
  static constexpr int width = Tile::width;
  static constexpr int fitting = Tile::ring_bytes / Tile::panel_bytes;
  static constexpr int stages = fitting < 2 ? 2 : fitting > 8 ? 8 : fitting;
  static constexpr Shared values_bytes = rows * width * int{sizeof(Number)};  // of a warp, at the end
  static constexpr Shared ring = stages * Tile::panel_bytes > values_bytes ? stages* Tile::panel_bytes : values_bytes;

  // Shared memory: the rings, what each warp needs beside, the queries, how parts join.
  static constexpr Shared scratch = warps * ring, queries = scratch + warps * Tile::scratch_bytes;
  static constexpr Shared join = queries + Tile::q_bytes;
  /// Room to join `parts` parts of the rows: their factors, the states of warps and of rows, the ticket.
  static constexpr Shared factors(Index parts) { return rows * (parts > warps ? parts : warps) * int{sizeof(Number)}; }
  static constexpr Shared states = 2 * rows * int{sizeof(Number)};
  static constexpr Shared bytes(Index splits) { return join + (warps + 1) * states + 16 + factors(splits); }
};

/// A call and how the plan lays it out.
///
/// Grid      splits · passes · key/value heads · batch, splits side by side; FewShape::threads threads each
/// Shapes    parts: SplitParts{splits, rows, width}.size(groups) numbers, counters: `groups` zeros, which are zeros
///           again after every launch; groups = passes · key/value heads · batch
template <class Call> struct FewParams {
  Call call;
  Index splits = 1;      ///< chunks of the keys
  Index passes = 1;      ///< sets of rows of a key/value head
  Index most = 0;        ///< queries of a sequence that is served: those with more have a launch of their own
  bool aligned = false;  ///< rows of q, k, v and out are contiguous and begin and end on 16 bytes
  Accumulator<typename Call::Scalar>* parts = nullptr;
  unsigned* counters = nullptr;
};

/// Attention of few queries over many keys, the shape of decoding: the rows of all heads that share a key/value head,
/// Lq each, read every key and value once. Keys are split into chunks, one a block; the block that is done last joins
/// their parts, in one launch.
///
/// Formula   out = softmax(score(scale · q kᵀ) where the mask allows) v
/// Numerics  as core/online_softmax.hpp over the tiles of a warp, then over warps, then over chunks, each in a fixed
///           order: the bits depend on the number of chunks, not on which block is last
template <class Machine, class Shape, class Call> class FewBlock {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  using Tile = typename Shape::Tile;
  using HeadScore = decltype(at_head(std::declval<const Call&>().score, Index{}, Index{}));
  static constexpr int width = Pack<A>::width, rows = Shape::rows, row_packs = Shape::width / width;
  static constexpr int packs_per_thread = (rows * row_packs + Shape::threads - 1) / Shape::threads;
  static_assert(rows * 8 <= Shape::threads);
  static_assert(std::is_same_v<A, typename Tile::Number> && std::is_same_v<T, typename Tile::Scalar>);

  struct HeadScores {
    HeadScore of[std::size_t{Tile::rows_per_lane}];
  };
  struct RowState {
    A max, sum;
  };

 public:
  MHA_KERNEL static void run(Machine& m, const FewParams<Call>& p) {
    const Call& call = p.call;
    const Index group = m.block().x / p.splits, head = group / p.passes;
    const Index b = head / call.kv_heads, g = head % call.kv_heads, heads = call.shape.heads / call.kv_heads;
    const Index queries = call.queries(b), keys = call.keys(b);
    const Index row0 = group % p.passes * rows, all_rows = heads * queries;
    if (row0 >= all_rows || queries > p.most) return;
    const Index count = all_rows - row0 < rows ? all_rows - row0 : rows;
    const auto row_of = [&](int r) {
      const Index at = row0 + (r < count ? r : count - 1), i = at % queries;
      return TileRow{g * heads + at / queries, i, call.position(b, i), r < count};
    };
    const int warp = m.thread() / warp_size;
    const Index tiles = (keys + Shape::keys - 1) / Shape::keys, chunk = m.block().x % p.splits;
    const TileShare share = share_of(p.splits, chunk, Shape::warps, warp);
    const Shared ring = m.shared() + warp * Shape::ring,
                 scratch = m.shared() + Shape::scratch + warp * Tile::scratch_bytes;
    const Shared q = m.shared() + Shape::queries;

    const Index h0 = row_of(0).h, h1 = row_of(count - 1).h;
    const auto visibility = [&](Index t) {
      const Index begin = t * Shape::keys, end = begin + Shape::keys;
      const Index first = call.position(b, 0), last = call.position(b, queries), inside = end < keys ? end : keys;
      TileVisibility seen = mha::tile(call.mask, b, h0, first, last, begin, inside);
      for (Index h = h0 + 1; h <= h1; ++h)
        if (mha::tile(call.mask, b, h, first, last, begin, inside) != seen) seen = TileVisibility::partial;
      return seen == TileVisibility::full && end > keys ? TileVisibility::partial : seen;
    };
    const auto next = [&](Index t) {
      for (; t < tiles; t += share.step) {
        const TileVisibility seen = visibility(t);
        if (seen != TileVisibility::none) return KeyTile{t, seen == TileVisibility::partial};
      }
      return KeyTile{};
    };
    const auto load = [&](Shared to, Index t, bool values) {
      const Index k0 = t * Shape::keys;
      const auto run = call.kv.run(b, g, k0, keys);
      const T* const first = values ? run.value : run.key;
      const std::ptrdiff_t stride = values ? run.value_stride : run.key_stride;
      stage_rows<T, row_packs_of<T>>(m, m.thread() % warp_size, warp_size, Shape::keys, keys - k0, 0,
                                     values ? call.value_dim : call.head_dim, 1, p.aligned, Tile::place(to),
                                     [&](Index r) {
                                       if (r < run.count) return first + r * stride;
                                       const auto later = call.kv.run(b, g, k0 + r, keys);
                                       return values ? later.value : later.key;
                                     });
    };

    // The ring: panel n of this warp, keys of a tile or its values, goes to stage n % stages.
    KeyTile ask_tile = next(share.first);
    bool ask_values = false;
    int ask_stage = 0, stage = 0;
    const auto ask = [&] {
      if (ask_tile) {
        load(ring + ask_stage * Tile::panel_bytes, ask_tile.index, ask_values);
        if (ask_values) ask_tile = next(ask_tile.index + share.step);
        ask_values = !ask_values;
      }
      m.commit();
      ask_stage = ask_stage + 1 == Shape::stages ? 0 : ask_stage + 1;
    };
    /// Waits until the warp has the next panel and has read the one before, whose place the next copy takes.
    const auto turn = [&] {
      m.template wait<Shape::stages - 2>();
      m.sync_warp();
      ask();
      const Shared here = ring + stage * Tile::panel_bytes;
      stage = stage + 1 == Shape::stages ? 0 : stage + 1;
      return here;
    };

    typename Tile::State state;
    Tile::clear(state);
    if (chunk * Shape::warps < tiles) {
      stage_rows<T, row_packs_of<T>>(m, m.thread(), Shape::threads, rows, count, 0, call.head_dim, call.q.stride[3],
                                     p.aligned, Tile::place(q), [&](int r) {
                                       const TileRow at = row_of(r);
                                       return call.query(b, at.i, at.h);
                                     });
      m.commit();
      for (int n = 0; n + 1 < Shape::stages; ++n) ask();
      m.template wait<Shape::stages - 1>();
      m.sync();  // the queries are here for all
      const HeadScores scores = head_scores(call, b, [&](int i) { return row_of(Tile::row(m, i)).h; });
      for (KeyTile tile = next(share.first); tile; tile = next(tile.index + share.step)) {
        Tile::weigh(
            m, state, q, turn(), scratch, call, b, tile.index * Shape::keys, keys, tile.partial,
            [&](int i) { return row_of(Tile::row(m, i)); }, [&](int i) { return scores.of[i]; });
        Tile::accumulate(m, state, scratch, turn());
      }
      Tile::reduce(m, state);
    }
    join(m, p, state, b, g, row0, count);
  }

 private:
  template <class X> static constexpr int row_packs_of = Shape::width / Pack<X>::width;

  template <class HeadOf> MHA_KERNEL static HeadScores head_scores(const Call& call, Index b, const HeadOf& head) {
    if constexpr (Tile::rows_per_lane == 1)
      return {{at_head(call.score, b, head(0))}};
    else if constexpr (Tile::rows_per_lane == 2)
      return {{at_head(call.score, b, head(0)), at_head(call.score, b, head(1))}};
    else
      return {{at_head(call.score, b, head(0)), at_head(call.score, b, head(1)), at_head(call.score, b, head(2)),
               at_head(call.score, b, head(3))}};
  }

  /// The warps' parts, then, by the last block of these rows, the chunks' parts.
  MHA_KERNEL static void join(Machine& m, const FewParams<Call>& p, const typename Tile::State& state, Index b, Index g,
                              Index row0, Index count) {
    const Call& call = p.call;
    const int warp = m.thread() / warp_size;
    const Shared states = m.shared() + Shape::join, totals = states + Shape::warps * Shape::states;
    const Shared ticket = totals + Shape::states, factors = ticket + 16;
    m.sync_warp();  // the ring is read and nothing is on its way to it: it takes the sums
    Tile::store(m, state, m.shared() + warp * Shape::ring);
    MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) if (Tile::lane(m) == 0) m.store(
        states + warp * Shape::states + Tile::row(m, i) * int{sizeof(RowState)}, RowState{state.max[i], state.sum[i]});
    m.sync();

    const std::ptrdiff_t group = m.block().x / p.splits;
    const std::ptrdiff_t groups = std::ptrdiff_t{call.shape.batch} * call.kv_heads * p.passes;
    const SplitParts place{p.splits, rows, Shape::width};
    RowState* const part_states = reinterpret_cast<RowState*>(p.parts);
    Pack<A>* const part_values = reinterpret_cast<Pack<A>*>(p.parts + place.states(groups));

    const auto of_warps = [&](int part, int r) {
      return m.template load<RowState>(states + part * Shape::states + r * int{sizeof(RowState)});
    };
    const auto values_of_warps = [&](int part, int r, int c) {
      return m.template load<Pack<A>>(m.shared() + part * Shape::ring + (r * row_packs + c) * 16);
    };
    const auto finish = [&](int r, int c, const Pack<A>& sums, const RowState& total) {
      finish_row(m, p, b, g, row0 + r, c, sums, total);
    };
    if (p.splits == 1) return merge(m, Shape::warps, count, factors, totals, of_warps, values_of_warps, finish);

    const Index chunk = m.block().x % p.splits;
    merge(m, Shape::warps, count, factors, totals, of_warps, values_of_warps,
          [&](int r, int c, const Pack<A>& sums, const RowState& total) {
            const std::ptrdiff_t at = place.row(group, chunk, r);
            if (c == 0) m.store_global(part_states + at, total);
            if (!is_empty(total)) m.store_global(part_values + at * row_packs + c, sums);
          });
    m.sync();
    if (m.thread() == 0) {
      m.fence();  // publishes what all threads have stored
      const unsigned before = m.atomic_wrap(p.counters + group, static_cast<unsigned>(p.splits - 1));
      m.fence();
      m.store(ticket, before);
    }
    m.sync();
    if (m.template load<unsigned>(ticket) != static_cast<unsigned>(p.splits - 1)) return;
    merge(
        m, p.splits, count, factors, totals,
        [&](int part, int r) { return m.template load_global<RowState>(part_states + place.row(group, part, r)); },
        [&](int part, int r, int c) {
          return m.template load_global<Pack<A>>(part_values + place.row(group, part, r) * row_packs + c);
        },
        finish);
  }

  MHA_KERNEL static bool is_empty(const RowState& s) { return s.max == minus_infinity<A>() && s.sum == A(0); }

  /// Parts of `count` rows made one, in the order of their numbers: to(row, pack, sums of values, state). An empty part
  /// has no values.
  template <class StateOf, class ValuesOf, class To>
  MHA_KERNEL static void merge(Machine& m, int parts, Index count, Shared factors, Shared totals,
                               const StateOf& state_of, const ValuesOf& values_of, const To& to) {
    constexpr int lanes = 8;  // of a row, which take turns at its parts
    const int r = m.thread() / lanes, lane = m.thread() % lanes;
    A top = minus_infinity<A>(), sum = A(0);
    if (r < count)
      for (int part = lane; part < parts; part += lanes) top = m.max(top, state_of(part, r).max);
    MHA_UNROLL for (int other = 1; other < lanes; other *= 2) top = m.max(top, m.shuffle_xor(top, other));
    const A shift = top == minus_infinity<A>() ? A(0) : top;
    if (r < count)
      for (int part = lane; part < parts; part += lanes) {
        const RowState s = state_of(part, r);
        const A factor = is_empty(s) ? hidden_weight<A>() : m.exp2((s.max - shift) * log2e<A>());
        if (!is_empty(s)) sum += factor * s.sum;
        m.store(factors + (part * rows + r) * int{sizeof(A)}, factor);
      }
    MHA_UNROLL for (int other = 1; other < lanes; other *= 2) sum += m.shuffle_xor(sum, other);
    if (r < count && lane == 0) m.store(totals + r * int{sizeof(RowState)}, RowState{top, sum});
    m.sync();

    Pack<A> sums[std::size_t{packs_per_thread}];
    MHA_UNROLL for (int n = 0; n < packs_per_thread; ++n) MHA_UNROLL for (int e = 0; e < width; ++e) sums[n].x[e] =
        A(0);
    for (int part = 0; part < parts; ++part) MHA_UNROLL for (int n = 0; n < packs_per_thread; ++n) {
        const int at = m.thread() + n * Shape::threads, row = at / row_packs;
        if (row >= count) continue;
        const A factor = m.template load<A>(factors + (part * rows + row) * int{sizeof(A)});
        if (is_hidden_weight(factor)) continue;
        const Pack<A> x = values_of(part, row, at % row_packs);
        MHA_UNROLL for (int e = 0; e < width; ++e) sums[n].x[e] = m.fma(factor, x.x[e], sums[n].x[e]);
      }
    MHA_UNROLL for (int n = 0; n < packs_per_thread; ++n) {
      const int at = m.thread() + n * Shape::threads, row = at / row_packs;
      if (row < count)
        to(row, at % row_packs, sums[n], m.template load<RowState>(totals + row * int{sizeof(RowState)}));
    }
  }

  MHA_KERNEL static void finish_row(Machine& m, const FewParams<Call>& p, Index b, Index g, Index row, int c,
                                    const Pack<A>& sums, const RowState& total) {
    const Call& call = p.call;
    const Index queries = call.queries(b), h = g * (call.shape.heads / call.kv_heads) + row / queries,
                i = row % queries;
    const RowEnd<A> end = end_of_row(m, call, h, total.max, total.sum);
    if (c == 0 && call.log_sum_exp.data != nullptr) m.store_global(&call.row_log_sum_exp(b, h, i), end.log_sum_exp);
    if constexpr (records<Call>)
      if (c == 0) record_row(m, call, b, h, i, total.max, total.sum);
    store_values(m, call.output(b, i, h), call.out.stride[3], c * width, call.value_dim, sums.x, end.inverse,
                 p.aligned);
  }
};

/// One thread of one block.
template <class Machine, class Shape, class Call>
MHA_KERNEL void few_queries_body(Machine& m, const FewParams<Call>& p) {
  FewBlock<Machine, Shape, Call>::run(m, p);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
