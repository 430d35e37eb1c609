// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../core/scalar.hpp"
#include "fma_body.hpp"
#include "gradient_params.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// One gradient of attention on multiply-adds, of any scalar, head sizes and strides: 64 rows of dQ, dK or dV a block,
/// FmaShape::values columns of them.
///
/// Formula   dQ = scale Σ_k ds k    dK = scale Σ_i ds q    dV = Σ_i f p d_out
///           with ds = p (f d_out · v − slope) ∂t/∂s
/// Shapes    four warps own 16 rows each; the rows of the other side come in tiles, depth in slices, what is summed in
///           strips of a tile, each copied while the one before is multiplied
/// Numerics  accumulates in Accumulator<T>, in the order of GradientWalk; a hidden pair is not touched; the bits do not
///           depend on the grid
/// Grid      parts of the columns · row tiles · heads (of dK and dV: of keys times their shares) · sequences, in the
///           order of RowBlocks
template <class Machine, class Shape, GradientOf Of, class Call> class FmaGradientBlock {
  using T = typename Call::Scalar;
  using A = Accumulator<T>;
  using Params = GradientParams<Call>;
  using Tile = typename Shape::Tile;
  static constexpr bool by_query = Of == GradientOf::query, weighs = Of == GradientOf::value;
  using Walk = GradientWalk<by_query, Shape::rows, Shape::keys, Call>;
  using Step = typename Walk::Step;
  static constexpr int width = Pack<A>::width;
  enum class Rows { query, key, value, d_out };

 public:
  MHA_KERNEL static void run(Machine& m, const Params& p) {
    const Call& call = p.call;
    const Index part = m.block().x % p.parts;
    const Walk walk(p, m.block().x / p.parts);
    if (walk.count <= 0) return;
    const Index slices = (call.head_dim + Shape::depth - 1) / Shape::depth;
    const Index value_slices = weighs ? 0 : (call.value_dim + Shape::depth - 1) / Shape::depth;
    const Shared stages = m.shared(), weights = stages + 2 * Shape::stage(false);
    const auto my_weights = [&] { return weights + (m.thread() / warp_size) * Shape::weights; };
    const auto first_row = [&] { return m.thread() / warp_size * Tile::rows; };

    /// A slice of both sides: of queries and keys, or of the rows that make dP.
    const auto load_slice = [&](Shared to, Step step, Index slice) {
      const bool dots = slice < slices;
      const Index begin = (dots ? slice : slice - slices) * Shape::depth, at = step.tile.index * Shape::keys;
      const Rows own = by_query ? (dots ? Rows::query : Rows::d_out) : (dots ? Rows::key : Rows::value);
      const Rows other = by_query ? (dots ? Rows::key : Rows::value) : (dots ? Rows::query : Rows::d_out);
      stage<Shape::slice_packs>(m, p, walk, other, to, Shape::pitch, Shape::keys, at, walk.others - at, step.h, begin);
      stage<Shape::slice_packs>(m, p, walk, own, to + Shape::k_slice, Shape::pitch, Shape::rows, walk.first, walk.count,
                                step.h, begin);
    };
    const auto load_strip = [&](Shared to, Step step, Index strip) {
      const Index at = step.tile.index * Shape::keys + strip * Shape::strip_keys;
      stage<Shape::values / width>(m, p, walk,
                                   by_query ? Rows::key
                                   : weighs ? Rows::d_out
                                            : Rows::query,
                                   to, Shape::v_pitch, Shape::strip_keys, at, walk.others - at, step.h,
                                   part * Shape::values);
    };
    int stage_number = 0;
    const auto at_stage = [&] { return stages + stage_number * Shape::stage(false); };
    /// Waits until all threads have the last copy and have read the one before, whose place `ask` fills.
    const auto turn = [&](const auto& ask) {
      m.template wait<0>();
      m.sync();
      const Shared here = at_stage();
      stage_number ^= 1;
      ask(at_stage());
      m.commit();
      return here;
    };

    typename Tile::State state;
    Tile::clear(state);
    Step step = walk.begin();
    if (step) {
      load_slice(at_stage(), step, 0);
      m.commit();
    }
    while (step) {
      const Step after = walk.after(step);
      const Index inside = walk.others - step.tile.index * Shape::keys;
      const Index strips = ((inside < Shape::keys ? inside : Shape::keys) + Shape::strip_keys - 1) / Shape::strip_keys;
      typename Tile::Logits s, d_weight;
      Tile::clear(s);
      Tile::clear(d_weight);
      const auto dots = [&](typename Tile::Logits& to, Index begin, Index end) {
        for (Index slice = begin; slice < end; ++slice) {
          const Shared here = turn([&](Shared next) {
            if (slice + 1 < slices + value_slices)
              load_slice(next, step, slice + 1);
            else
              load_strip(next, step, 0);
          });
          Tile::dots(m, to, here + Shape::k_slice + first_row() * Shape::pitch, Shape::pitch, here, Shape::pitch,
                     Shape::slice_packs);
        }
      };
      dots(s, 0, slices);
      if constexpr (!weighs) dots(d_weight, slices, slices + value_slices);
      const bool guarded = m.any(differentiate(m, p, walk, step, s, d_weight, my_weights()));
      for (Index strip = 0; strip < strips; ++strip) {
        const Shared here = turn([&](Shared to) {
          if (strip + 1 < strips)
            load_strip(to, step, strip + 1);
          else if (after)
            load_slice(to, after, 0);
        });
        Tile::accumulate(m, state, my_weights() + strip * Shape::strip_keys * int{sizeof(A)}, here, Shape::v_pitch,
                         Shape::strip_keys, guarded);
      }
      step = after;
    }

    const GradientRows<T>& to = by_query ? p.query : weighs ? p.value : p.key;
    const Index columns = weighs ? call.value_dim : call.head_dim;
    const A factor = weighs ? A(1) : call.scale;
    MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
      const Index r = first_row() + Tile::group(m) + i * Tile::groups;
      if (r >= walk.count) continue;
      const std::ptrdiff_t row = to.row(walk.b - p.first_sequence, walk.first - p.first_row + r, walk.place);
      MHA_UNROLL for (int c = 0; c < Tile::packs_per_lane; ++c) MHA_UNROLL for (int e = 0; e < width; ++e) {
        const Index d = part * Shape::values + (Tile::lane(m) + c * Tile::lanes) * width + e;
        if (d < columns) to.put(m, row, d, state.o[i][c][e] * factor);
      }
    }
  }

 private:
  /// Rows begin, … of a kind into shared memory, their columns from `column` on.
  template <int Packs>
  MHA_KERNEL static void stage(Machine& m, const Params& p, const Walk& walk, Rows kind, Shared to, Shared pitch,
                               int rows, Index begin, Index valid, Index h, Index column) {
    const Call& call = p.call;
    const bool of_keys = kind == Rows::key || kind == Rows::value;
    const Index columns = kind == Rows::query || kind == Rows::key ? call.head_dim : call.value_dim;
    const std::ptrdiff_t stride = of_keys ? 1 : kind == Rows::query ? call.q.stride[3] : p.d_out.stride[3];
    stage_rows<A, Packs>(m, m.thread(), Shape::threads, rows, valid, column, columns, stride, p.aligned,
                         rows_at(to, pitch), [&](Index r) {
                           if (kind == Rows::query) return call.query(walk.b, begin + r, h);
                           if (kind == Rows::d_out) return p.row(p.d_out, walk.b, begin + r, h);
                           const auto run = call.kv.run(walk.b, walk.g, begin + r, begin + r + 1);
                           return kind == Rows::key ? run.key : run.value;
                         });
  }

  /// From dot products to ds, or to the weights of dV, in this warp's rows of shared memory at `to`. Returns whether
  /// some pair of this lane is hidden.
  MHA_KERNEL static bool differentiate(Machine& m, const Params& p, const Walk& walk, Step step,
                                       const typename Tile::Logits& s, const typename Tile::Logits& d_weight,
                                       Shared to) {
    const Call& call = p.call;
    const LiftedScore<Call> score(call, walk.b, step.h);
    to += Tile::group(m) * Tile::weights_pitch + Tile::lane(m) * int{sizeof(A)};
    const Index own0 = m.thread() / warp_size * Tile::rows + Tile::group(m);
    const Index other0 = step.tile.index * Shape::keys + Tile::lane(m);
    const auto own_row = [&](int i) { return walk.first + own0 + i * Tile::groups; };
    const auto other_row = [&](int j) { return other0 + j * Tile::lanes; };
    const auto place = [&](int i, int j) {
      return to + i * Tile::groups * Tile::weights_pitch + j * Tile::lanes * int{sizeof(A)};
    };
    const bool drops = call.dropout.exist();
    if (drops) {  // the factors wait where the results go
      MHA_ROLL for (int at = 0; at < Tile::rows_per_lane * Tile::keys_per_lane; ++at) {
        const int i = at / Tile::keys_per_lane, j = at % Tile::keys_per_lane;
        const Index q = Walk::query(own_row(i), other_row(j)), k = Walk::key(own_row(i), other_row(j));
        m.store(place(i, j), static_cast<A>(call.dropout_factor(walk.b, step.h, q, k)));
      }
    }
    bool hidden = false;
    const auto facts = [&](Index own, Index other) {
      const Index q = Walk::query(own, other), queries = by_query ? walk.own : walk.others;
      return p.rows[call.row_state(walk.b, step.h, q < queries ? q : queries - 1)];
    };
    const auto pair = [&](int i, int j, const RowFacts<A>& row) {
      const Index own = own_row(i), other = other_row(j);
      const Index position = call.position(walk.b, Walk::query(own, other)), k = Walk::key(own, other);
      const bool here = own < walk.own && other < walk.others && row.level != level_of_nothing<A>() &&
                        (!step.tile.partial || call.mask(walk.b, step.h, position, k));
      A result = hidden_weight<A>();
      if (here) {
        const Logit<A> t = score(A(call.scale * s.s[i][j]), position, k);
        if (t.value != minus_infinity<A>()) {
          const A weight = m.exp2((t.value - row.level) * log2e<A>()) * row.inverse;
          const A factor = drops ? m.template load<A>(place(i, j)) : A(1);
          const A x = weighs ? weight * factor : weight * (d_weight.s[i][j] * factor - row.slope) * t.slope;
          result = x + A(0);  // what is seen is never −0
        }
      }
      hidden = hidden || is_hidden_weight(result);
      m.store(place(i, j), result);
    };
    if constexpr (by_query) {
      MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
        const RowFacts<A> row = facts(own_row(i), 0);
        MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j) pair(i, j, row);
      }
    } else {
      MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j) {
        const RowFacts<A> row = facts(0, other_row(j));
        MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) pair(i, j, row);
      }
    }
    return hidden;
  }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
