// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "finite.hpp"
#include "gradient_params.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// How a block of the tensor-core backward body cuts its work: `rows` of its own, 16 for each warp, against tiles of
/// `others`.
///
/// Cost      registers of a thread: dK and dV, rows·D each, and two tiles, rows·others, over 128 threads
///           shared memory: two matrices of its own, two stages of two others
template <int D, int Others> struct MmaGradientShape {
  static constexpr int dim = D, warps = 4, rows = 16 * warps, others = Others, threads = warps * warp_size;
  static_assert(Others % 16 == 0 && Others <= 64);
  static constexpr int blocks_per_multiprocessor = 2;  ///< for __launch_bounds__
  using Row = SharedRows<D>;
  static constexpr Shared own_bytes = rows * Row::bytes, other_bytes = Others * Row::bytes;
  static constexpr Shared facts_bytes = Others * int{sizeof(RowFacts<float>)};
  static constexpr Shared stage_bytes = 2 * other_bytes + facts_bytes;
  static constexpr Shared shared_bytes = 2 * own_bytes + 2 * stage_bytes;
};

/// dQ of 64 queries of a head, or dK and dV of 64 keys, on tensor cores.
///
/// Formula   S = X₁ Y₁ᵀ,  dP = X₂ Y₂ᵀ,  dX₁ = scale dS Y₁,  and of keys dX₂ = P Y₂, where X₁, X₂ are the rows of
///           its own, (q, d_out) or (k, v), and Y₁, Y₂ those of the other side
/// Shapes    X₁ (rows, D)  X₂ (rows, Dv)  Y₁ (others, D)  Y₂ (others, Dv)
/// Numerics  products of 16-bit numbers summed in float; P and dS rounded to nearest even in 16 bits; the order is that
///           of GradientWalk
/// Grid      row tiles · heads (of keys times their shares for dK and dV) · sequences, in the order of RowBlocks
/// Source    Dao 2023, FlashAttention-2, algorithm 2, in two kernels so that nothing is added by many blocks
template <class Machine, class Shape, bool ByQuery, class Call> class MmaGradientBlock {
  using T = typename Call::Scalar;
  using Params = GradientParams<Call>;
  using Row = typename Shape::Row;
  using Walk = GradientWalk<ByQuery, Shape::rows, Shape::others, Call>;
  using Step = typename Walk::Step;
  static constexpr int tile_steps = Shape::others / 8, steps = Shape::dim / 8;  // columns of accumulators
  static constexpr int depth = Shape::dim / 16, tile_depth = Shape::others / 16;
  using Tile = float[std::size_t{tile_steps}][4];  // accumulators (rows of the warp, others)
  using Sums = float[std::size_t{steps}][4];       // (rows of the warp, D)
  using Facts = RowFacts<float>;

 public:
  MHA_KERNEL MmaGradientBlock(Machine& machine, const Params& params)
      : m_(machine),
        p_(params),
        walk_(params, machine.block().x),
        own_(machine.shared()),
        stages_(own_ + 2 * Shape::own_bytes) {}

  MHA_KERNEL void run() {
    if (walk_.count <= 0) return;
    clear(first_);
    clear(second_);
    Step step = walk_.begin();
    if (step) {
      load_own(step);
      load_others(step, 0);
      m_.commit();
    }
    for (int stage = 0; step; stage ^= 1) {
      const Step next = walk_.after(step);
      m_.template wait<0>();
      m_.sync();  // this tile is here for all, and the one before is read: the next takes its place
      if (next) load_others(next, stage ^ 1);
      m_.commit();
      multiply(step, stages_ + stage * Shape::stage_bytes);
      step = next;
    }
    if constexpr (ByQuery) {
      store(p_.query, first_, p_.call.head_dim, p_.call.scale);
    } else {
      if (p_.key.data != nullptr) store(p_.key, first_, p_.call.head_dim, p_.call.scale);
      if (p_.value.data != nullptr) store(p_.value, second_, p_.call.value_dim, 1.f);
    }
  }

 private:
  // m_.thread() is asked anew in every phase: index arithmetic is cheaper than the registers that would hold it.
  MHA_KERNEL int lane() const { return m_.thread() & (warp_size - 1); }
  MHA_KERNEL int warp_row() const { return (m_.thread() >> 5) * 16; }

  template <std::size_t N> MHA_KERNEL static void clear(float (&x)[N][4]) {
    MHA_UNROLL for (int n = 0; n < int{N}; ++n) MHA_UNROLL for (int e = 0; e < 4; ++e) x[n][e] = 0;
  }

  /// `count` rows into shared memory; beyond `valid` rows and `columns` columns are zeros. row(r) → its first element.
  template <class RowOf>
  MHA_KERNEL void load_rows(Shared to, int count, Index valid, Index columns, const RowOf& row) const {
    const T* const somewhere = row(0);
    MHA_UNROLL for (int i = 0; i < count * Row::chunks; i += Shape::threads) {
      const int at = i + m_.thread(), r = at / Row::chunks, c = at % Row::chunks;
      const bool here = r < valid && c * 8 < columns;
      m_.cp_async16(Row::address(to, r, c), here ? row(r) + c * 8 : somewhere, here);
    }
  }
  /// Queries and their d_out, or keys and their values.
  MHA_KERNEL void load_pair(Shared to, Shared apart, bool queries, int count, Index begin, Index valid, Index h) const {
    const Call& call = p_.call;
    if (queries) {
      load_rows(to, count, valid, call.head_dim, [&](Index r) { return call.query(walk_.b, begin + r, h); });
      load_rows(to + apart, count, valid, call.value_dim,
                [&](Index r) { return p_.row(p_.d_out, walk_.b, begin + r, h); });
    } else {
      const auto run = call.kv.run(walk_.b, walk_.g, begin, begin + valid);
      load_rows(to, count, valid, call.head_dim, [&](Index r) { return run.key + r * run.key_stride; });
      load_rows(to + apart, count, valid, call.value_dim, [&](Index r) { return run.value + r * run.value_stride; });
    }
  }
  MHA_KERNEL void load_own(Step step) const {
    load_pair(own_, Shape::own_bytes, ByQuery, Shape::rows, walk_.first, walk_.count, step.h);
  }
  MHA_KERNEL void load_others(Step step, int stage) const {
    const Shared to = stages_ + stage * Shape::stage_bytes;
    const Index begin = step.tile.index * Shape::others, valid = walk_.others - begin;
    load_pair(to, Shape::other_bytes, !ByQuery, Shape::others, begin, valid < Shape::others ? valid : Shape::others,
              step.h);
    if constexpr (!ByQuery) {
      const Facts* const rows = p_.rows + p_.call.row_state(walk_.b, step.h, begin);
      const Index i = m_.thread();
      if (i < Shape::others)
        m_.cp_async16(to + 2 * Shape::other_bytes + i * int{sizeof(Facts)}, i < valid ? rows + i : rows, i < valid);
    }
  }

  /// to = x yᵀ, of this warp's rows of x.
  MHA_KERNEL void dots(Tile& to, Shared x, Shared y) const {
    clear(to);
    const Shared left = Row::address(x, warp_row() + Lanes::a_row(lane()), Lanes::a_chunk(lane()));
    const Shared right = Row::address(y, Lanes::b_row(lane()), Lanes::b_chunk(lane()));
    MHA_UNROLL for (int k = 0; k < depth; ++k) {
      std::uint32_t a[4];
      m_.ldmatrix_x4(a, Row::beside(left, 2 * k));
      MHA_UNROLL for (int n = 0; n < tile_steps; n += 2) {
        std::uint32_t b[4];
        m_.ldmatrix_x4(b, Row::beside(right, 2 * k) + n * 8 * Row::bytes);
        m_.template mma_m16n8k16<T>(to[n], a, b[0], b[1]);
        m_.template mma_m16n8k16<T>(to[n + 1], a, b[2], b[3]);
      }
    }
  }

  MHA_KERNEL void multiply(Step step, Shared here) {
    Tile s, d_weight;
    dots(s, own_, here);
    dots(d_weight, own_ + Shape::own_bytes, here + Shape::other_bytes);
    const std::uint32_t hidden = differentiate(s, d_weight, step, here + 2 * Shape::other_bytes);
    const bool guarded = m_.any(hidden != 0);
    add(first_, d_weight, hidden, guarded, here);
    if constexpr (!ByQuery) add(second_, s, hidden, guarded, here + Shape::other_bytes);
  }

  /// From dot products to p, in s, and ds, in d_weight: 0 where a pair is hidden, with bit 4 n + e of the result.
  MHA_KERNEL std::uint32_t differentiate(Tile& s, Tile& d_weight, Step step, Shared facts) const {
    const Call& call = p_.call;
    const LiftedScore<Call> score(call, walk_.b, step.h);
    const int l = lane();
    const Index own0 = walk_.first + warp_row() + Lanes::row(l, 0);
    const Index other0 = step.tile.index * Shape::others + Lanes::column(l, 0);
    const Index origin = call.position(walk_.b, 0);
    std::uint32_t hidden = 0;
    Facts rows[2];
    if constexpr (ByQuery) {
      MHA_UNROLL for (int r = 0; r < 2; ++r) {
        const Index i = own0 + 8 * r < walk_.own ? own0 + 8 * r : walk_.own - 1;
        rows[r] = p_.rows[call.row_state(walk_.b, step.h, i)];
      }
    }
    MHA_UNROLL for (int n = 0; n < tile_steps; ++n) {
      if constexpr (!ByQuery) {
        MHA_UNROLL for (int c = 0; c < 2; ++c) rows[c] =
            m_.template load<Facts>(facts + (8 * n + Lanes::column(l, c)) * int{sizeof(Facts)});
      }
      MHA_UNROLL for (int e = 0; e < 4; ++e) {
        const Facts& row = rows[ByQuery ? e / 2 : e % 2];
        const Index own = own0 + Lanes::row(0, e), other = other0 + 8 * n + Lanes::column(0, e);
        const Index position = origin + Walk::query(own, other), k = Walk::key(own, other);
        bool seen = row.level != level_of_nothing<float>();
        if (LiftedScore<Call>::exists || step.tile.partial) seen = seen && own < walk_.own && other < walk_.others;
        if (step.tile.partial) seen = seen && call.mask(walk_.b, step.h, position, k);
        Logit<float> t{call.scale * s[n][e], 1.f};
        if constexpr (LiftedScore<Call>::exists) {
          if (seen) t = score(t.value, position, k);
        }
        seen = seen && t.value != minus_infinity<float>();
        const float weight = m_.exp2((t.value - row.level) * log2e<float>()) * row.inverse;
        s[n][e] = seen ? weight : 0.f;
        d_weight[n][e] = seen ? weight * (d_weight[n][e] - row.slope) * t.slope : 0.f;
        if (!seen) hidden |= 1u << (4 * n + e);
      }
    }
    return hidden;
  }

  /// to += weights y.
  MHA_KERNEL void add(Sums& to, const Tile& weights, std::uint32_t hidden, bool guarded, Shared y) const {
    if (guarded && !all_finite<T>(m_, y, Shape::other_bytes))
      add_seen(to, weights, hidden, y);
    else
      add_all(to, weights, y);
  }
  MHA_KERNEL Shared column_lane(Shared y) const {
    return Row::address(y, Lanes::a_row(lane()), Lanes::a_chunk(lane()));
  }
  /// Of others 16 k … 16 k + 15: accumulators are the A operand of the next product.
  MHA_KERNEL void pack(std::uint32_t (&a)[4], const Tile& weights, int k) const {
    MHA_UNROLL for (int e = 0; e < 4; ++e) {
      const float(&pair)[4] = weights[2 * k + e / 2];
      a[e] = m_.template pack<T>(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
    }
  }
  MHA_KERNEL void add_all(Sums& to, const Tile& weights, Shared y) const {
    const Shared right = column_lane(y);
    MHA_UNROLL for (int k = 0; k < tile_depth; ++k) {
      std::uint32_t a[4];
      pack(a, weights, k);
      MHA_UNROLL for (int d = 0; d < steps; d += 2) {
        std::uint32_t b[4];
        m_.ldmatrix_x4_trans(b, Row::beside(right, d) + k * 16 * Row::bytes);
        m_.template mma_m16n8k16<T>(to[d], a, b[0], b[1]);
        m_.template mma_m16n8k16<T>(to[d + 1], a, b[2], b[3]);
      }
    }
  }
  /// The same over visible pairs.
  MHA_KERNEL void add_seen(Sums& to, const Tile& weights, std::uint32_t hidden, Shared y) const {
    const Shared right = column_lane(y);
    MHA_ROLL for (int k = 0; k < tile_depth; ++k) {
      std::uint32_t a[4], seen[4];
      MHA_UNROLL for (int j = 0; j < tile_depth; ++j) if (j == k) pack(a, weights, j);
      MHA_UNROLL for (int e = 0; e < 4; ++e) {
        const std::uint32_t pair = hidden >> (8 * k + e / 2 * 4 + e % 2 * 2);
        seen[e] = PairBits<T>::ones((pair & 1u) == 0, (pair & 2u) == 0);
      }
      MHA_UNROLL for (int d = 0; d < steps; d += 2) {
        std::uint32_t b[4];
        m_.ldmatrix_x4_trans(b, Row::beside(right, d) + k * 16 * Row::bytes);
        MHA_UNROLL for (int c = 0; c < 2; ++c) multiply_seen<T>(m_, to[d + c], a, seen, b[2 * c], b[2 * c + 1]);
      }
    }
  }

  MHA_KERNEL void store(const GradientRows<T>& to, const Sums& sums, Index columns, float factor) const {
    const int l = lane();
    MHA_UNROLL for (int r = 0; r < 2; ++r) {
      const Index i = warp_row() + Lanes::row(l, 2 * r);
      if (i >= walk_.count) continue;
      const std::ptrdiff_t row = to.row(walk_.b - p_.first_sequence, walk_.first - p_.first_row + i, walk_.place);
      MHA_UNROLL for (int d = 0; d < steps; ++d) MHA_UNROLL for (int e = 0; e < 2; ++e) {
        const Index column = 8 * d + Lanes::column(l, e);
        if (column < columns) to.put(m_, row, column, sums[d][2 * r + e] * factor);
      }
    }
  }

  Machine& m_;
  const Params& p_;
  const Walk walk_;
  const Shared own_, stages_;
  Sums first_, second_;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
