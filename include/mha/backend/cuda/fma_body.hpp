// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../policy/mask.hpp"
#include "forward_shape.hpp"
#include "machine.hpp"
#include "tiles.hpp"
#include "warp_tile.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// What one block of fma_body computes: 64 queries of one head, `Values` columns of their outputs.
///
/// Four warps own 16 queries each. Keys come in tiles, depth in slices, values in strips of a tile; each slice or strip
/// is copied while the one before is multiplied.
template <class A, int Values> struct FmaShape {
  static constexpr int keys_per_lane = sizeof(A) == 4 && Values <= 128 ? 8 : 4;
  using Tile = WarpTile<A, 4, keys_per_lane, Values / (8 * Pack<A>::width)>;
  static_assert(Tile::values == Values);

  static constexpr int warps = 4, threads = warps * warp_size, rows = warps * Tile::rows, keys = Tile::keys;
  static constexpr int blocks_per_multiprocessor = 2;  ///< for __launch_bounds__
  static constexpr int values = Values;
  static constexpr int depth = 32, slice_packs = depth / Pack<A>::width;
  static constexpr int strip_keys = keys * depth / Values;
  static_assert(strip_keys % Pack<A>::width == 0 && keys % strip_keys == 0);

  // An odd number of packs from row to row, so that 8 rows lie in 8 different groups of banks.
  static constexpr Shared pitch = (depth + Pack<A>::width) * int{sizeof(A)};
  static constexpr Shared q_slice = rows * pitch, k_slice = keys * pitch, v_pitch = Values * int{sizeof(A)};
  static constexpr Shared strip = strip_keys * v_pitch;
  static constexpr Shared weights = Tile::rows * Tile::weights_pitch;  // of one warp

  /// Shared memory of a block: stages of a slice or a strip each, weights, queries. Queries that do not stay travel
  /// with the keys.
  MHA_HOST_DEVICE static constexpr Shared stage(bool q_stays) {
    const Shared keys_bytes = k_slice + (q_stays ? 0 : q_slice);
    return keys_bytes > strip ? keys_bytes : strip;
  }
  static constexpr Shared bytes(Index head_dim, bool q_stays) {
    return 2 * stage(q_stays) + warps * weights + (q_stays ? ((head_dim + depth - 1) / depth) * q_slice : 0);
  }
};

/// A call and how the plan lays it out.
///
/// Grid      row tiles · heads · batch as in `blocks`, times value_parts; FmaShape::threads threads each
template <class Call> struct FmaParams {
  Call call;
  RowBlocks blocks;
  Index value_parts = 1;  ///< blocks that share the columns of an output, FmaShape::values each
  bool q_stays = true;    ///< all of a block's queries fit into shared memory
  bool aligned = false;   ///< rows of q, k, v and out are contiguous and begin and end on 16 bytes
};

/// Attention in float and double, and of 16-bit scalars where no tensor-core body serves: any head sizes and strides;
/// of all scalars where weights are dropped.
///
/// Formula   out = softmax(score(scale · q kᵀ) where the mask allows) v
/// Numerics  accumulates in Accumulator<T>, one chain of multiply-adds over depth, and one over keys from the last tile
///           on; hidden value rows are not touched; the bits do not depend on the grid
template <class Machine, class Shape, class Call> class FmaBlock {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  using Tile = typename Shape::Tile;
  static constexpr int width = Pack<A>::width;

 public:
  MHA_KERNEL static void run(Machine& m, const FmaParams<Call>& p) {
    const Call& call = p.call;
    const Index part = m.block().x % p.value_parts;
    const RowBlocks::Place place = p.blocks[m.block().x / p.value_parts];
    const Index b = place.b, h = place.h, g = call.kv_head(h), q0 = place.row_tile * Shape::rows;
    const Index queries = call.queries(b), keys = call.keys(b);
    if (q0 >= queries || queries < p.blocks.fewest) return;
    const Index count = queries - q0 < Shape::rows ? queries - q0 : Shape::rows;
    const Index slices = (call.head_dim + Shape::depth - 1) / Shape::depth;

    const Shared stages = m.shared(), weights = stages + 2 * Shape::stage(p.q_stays);
    const Shared queries_at = weights + Shape::warps * Shape::weights;
    const auto my_weights = [&] { return weights + (m.thread() / warp_size) * Shape::weights; };
    const auto first_row = [&] { return m.thread() / warp_size * Tile::rows; };

    const auto visibility = [&](Index begin, Index end) {
      return mha::tile(call.mask, b, h, call.position(b, q0), call.position(b, q0 + count), begin, end);
    };
    const KeyTiles<Shape::keys, decltype(visibility)> tiles(keys, visibility);

    const auto load_q = [&](Shared to, Index slice) {
      stage_rows<A, Shape::slice_packs>(m, m.thread(), Shape::threads, Shape::rows, count, slice * Shape::depth,
                                        call.head_dim, call.q.stride[3], p.aligned, rows_at(to, Shape::pitch),
                                        [&](Index r) { return call.query(b, q0 + r, h); });
    };
    const auto load_k = [&](Shared to, Index t, Index slice) {
      const Index k0 = t * Shape::keys;
      const auto run = call.kv.run(b, g, k0, keys);
      stage_rows<A, Shape::slice_packs>(
          m, m.thread(), Shape::threads, Shape::keys, keys - k0, slice * Shape::depth, call.head_dim, 1, p.aligned,
          rows_at(to, Shape::pitch),
          [&](Index r) { return r < run.count ? run.key + r * run.key_stride : call.kv.run(b, g, k0 + r, keys).key; });
      if (!p.q_stays) load_q(to + Shape::k_slice, slice);
    };
    const auto load_v = [&](Shared to, Index t, Index strip) {
      const Index k0 = t * Shape::keys + strip * Shape::strip_keys;
      const auto run = call.kv.run(b, g, k0, keys);
      stage_rows<A, Shape::values / width>(
          m, m.thread(), Shape::threads, Shape::strip_keys, keys - k0, part * Shape::values, call.value_dim, 1,
          p.aligned, rows_at(to, Shape::v_pitch), [&](Index r) {
            return r < run.count ? run.value + r * run.value_stride : call.kv.run(b, g, k0 + r, keys).value;
          });
    };
    int stage = 0;
    const auto at_stage = [&] { return stages + stage * Shape::stage(p.q_stays); };
    /// Waits until all threads have the last copy and have read the one before, whose place `ask` fills.
    const auto turn = [&](const auto& ask) {
      m.template wait<0>();
      m.sync();
      const Shared here = at_stage();
      stage ^= 1;
      ask(at_stage());
      m.commit();
      return here;
    };

    typename Tile::State state;
    Tile::clear(state);
    const auto score = at_head(call.score, b, h);
    KeyTile tile = tiles.first();
    if (tile) {
      if (p.q_stays)
        for (Index slice = 0; slice < slices; ++slice) load_q(queries_at + slice * Shape::q_slice, slice);
      load_k(at_stage(), tile.index, 0);
      m.commit();
    }
    while (tile) {
      const Index t = tile.index;
      const KeyTile after = tiles.after(tile);
      const Index inside = keys - t * Shape::keys < Shape::keys ? keys - t * Shape::keys : Shape::keys;
      const Index strips = (inside + Shape::strip_keys - 1) / Shape::strip_keys;
      typename Tile::Logits logits;
      Tile::clear(logits);
      for (Index slice = 0; slice < slices; ++slice) {
        const Shared here = turn([&](Shared to) {
          if (slice + 1 < slices)
            load_k(to, t, slice + 1);
          else
            load_v(to, t, 0);
        });
        const Shared q = p.q_stays ? queries_at + slice * Shape::q_slice : here + Shape::k_slice;
        Tile::dots(m, logits, q + first_row() * Shape::pitch, Shape::pitch, here, Shape::pitch, Shape::slice_packs);
      }
      const auto row = [&](int i) {
        const Index r = q0 + first_row() + Tile::group(m) + i * Tile::groups;
        return TileRow{h, r, call.position(b, r), r < queries};
      };
      Tile::apply(m, logits, call, b, t * Shape::keys, keys, tile.partial, row, [&](int) { return score; });
      const bool guarded = m.any(Tile::weigh(m, logits, state, my_weights()));
      if (call.dropout.exist()) Tile::drop(m, call.dropout, call.shape, b, t * Shape::keys, my_weights(), row);
      for (Index strip = 0; strip < strips; ++strip) {
        const Shared here = turn([&](Shared to) {
          if (strip + 1 < strips)
            load_v(to, t, strip + 1);
          else if (after)
            load_k(to, after.index, 0);
        });
        Tile::accumulate(m, state, my_weights() + strip * Shape::strip_keys * int{sizeof(A)}, here, Shape::v_pitch,
                         Shape::strip_keys, guarded);
      }
      tile = after;
    }
    Tile::reduce(m, state);

    MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
      const Index r = q0 + first_row() + Tile::group(m) + i * Tile::groups;
      const RowEnd<A> end = end_of_row(m, call, h, state.max[i], state.sum[i]);
      if (r >= queries) continue;
      if (part == 0 && Tile::lane(m) == 0 && call.log_sum_exp.data != nullptr)
        m.store_global(&call.row_log_sum_exp(b, h, r), end.log_sum_exp);
      if constexpr (records<Call>)
        if (part == 0 && Tile::lane(m) == 0) record_row(m, call, b, h, r, state.max[i], state.sum[i]);
      T* const out = call.output(b, r, h);
      MHA_UNROLL for (int c = 0; c < Tile::packs_per_lane; ++c) {
        const Index first = part * Shape::values + (Tile::lane(m) + c * Tile::lanes) * width;
        store_values(m, out, call.out.stride[3], first, call.value_dim, state.o[i][c], end.inverse, p.aligned);
      }
    }
  }
};

/// One thread of one block.
template <class Machine, class Shape, class Call> MHA_KERNEL void fma_body(Machine& m, const FmaParams<Call>& p) {
  FmaBlock<Machine, Shape, Call>::run(m, p);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
