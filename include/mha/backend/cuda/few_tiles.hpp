// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "finite.hpp"
#include "machine.hpp"
#include "tiles.hpp"
#include "warp_tile.hpp"

/// What one warp does with a few rows and a few keys at a time, in two ways with the same members: on multiply-adds for
/// float and double, on tensor cores for 16-bit scalars. The rows of q, k and v are `Width` elements, zeros beyond
/// the head sizes.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Float and double: 4 · RowsPerLane rows.
template <class T, int RowsPerLane, int Width> struct FewOnFma {
  using Scalar = T;
  using Number = T;
  static constexpr int width = Width;
  static constexpr int ring_bytes = 24 << 10;  // of a warp: see FewShape
  static constexpr int keys = Width * int{sizeof(T)} > 1024 ? 8 : 16;
  using Tile = WarpTile<T, RowsPerLane, keys / 8, Width / (8 * Pack<T>::width)>;
  static_assert(Tile::values == Width);
  static constexpr int rows = Tile::rows, rows_per_lane = RowsPerLane;

  // An odd number of packs from row to row: 8 rows lie in 8 different groups of banks.
  static constexpr Shared pitch = (Width + Pack<T>::width) * int{sizeof(T)};
  static constexpr Shared q_bytes = rows * pitch, panel_bytes = keys * pitch;
  static constexpr Shared scratch_bytes = rows * Tile::weights_pitch;
  MHA_KERNEL static auto place(Shared to) { return rows_at(to, pitch); }

  struct State : Tile::State {
    bool guarded;
  };

  MHA_KERNEL static void clear(State& state) { Tile::clear(state); }
  template <class Machine> MHA_KERNEL static int row(Machine& m, int i) { return Tile::group(m) + i * Tile::groups; }
  template <class Machine> MHA_KERNEL static int lane(Machine& m) { return Tile::lane(m); }

  /// The running softmax takes `keys` keys in.
  template <class Machine, class Call, class Row, class Score>
  MHA_KERNEL static void weigh(Machine& m, State& state, Shared q, Shared k, Shared scratch, const Call& call, Index b,
                               Index first_key, Index keys_end, bool test, const Row& row_of, const Score& score) {
    typename Tile::Logits logits;
    Tile::clear(logits);
    Tile::dots(m, logits, q, pitch, k, pitch, Width / Pack<T>::width);
    Tile::apply(m, logits, call, b, first_key, keys_end, test, row_of, score);
    state.guarded = m.any(Tile::weigh(m, logits, state, scratch));
  }
  /// Their values follow.
  template <class Machine> MHA_KERNEL static void accumulate(Machine& m, State& state, Shared scratch, Shared v) {
    Tile::accumulate(m, state, scratch, v, pitch, keys, state.guarded);
  }
  template <class Machine> MHA_KERNEL static void reduce(Machine& m, State& state) { Tile::reduce(m, state); }

  /// Sums of values to (rows, Width) numbers at `to`.
  template <class Machine> MHA_KERNEL static void store(Machine& m, const State& state, Shared to) {
    MHA_UNROLL for (int i = 0; i < RowsPerLane; ++i) MHA_UNROLL for (int c = 0; c < Tile::packs_per_lane; ++c) {
      Pack<T> x;
      MHA_UNROLL for (int e = 0; e < Pack<T>::width; ++e) x.x[e] = state.o[i][c][e];
      m.store(to + row(m, i) * Width * int{sizeof(T)} + (Tile::lane(m) + c * Tile::lanes) * 16, x);
    }
  }
};

/// bfloat16 and half: 16 rows, whatever of them is there.
///
/// Numerics  weights are rounded to T before they meet the values, not before they are summed
template <class T, int Width> struct FewOnMma {
  using Scalar = T;
  using Number = float;
  static constexpr int width = Width;
  static constexpr int ring_bytes = 16 << 10;
  static constexpr int rows = 16, keys = 16, rows_per_lane = 2, lanes = 4;
  static constexpr int depth_steps = Width / 16, blocks = Width / 8;  // of 16 elements of depth, of 8 value columns

  using Panel = SharedRows<Width>;
  static constexpr Shared q_bytes = rows * Panel::bytes, panel_bytes = keys * Panel::bytes, scratch_bytes = 0;

  MHA_KERNEL static auto place(Shared to) {
    return [to](int r, int c) { return Panel::address(to, r, c); };
  }

  struct State {
    float max[2], sum[2];  // of rows lane / 4 and that + 8; sum: of this lane's keys until reduce()
    float o[std::size_t{blocks}][4];
    float s[2][4];  // logits, then weights
    bool guarded;
  };

  MHA_KERNEL static void clear(State& state) {
    MHA_UNROLL for (int i = 0; i < 2; ++i) {
      state.max[i] = minus_infinity<float>();
      state.sum[i] = 0;
    }
    MHA_UNROLL for (int d = 0; d < blocks; ++d) MHA_UNROLL for (int e = 0; e < 4; ++e) state.o[d][e] = 0;
  }
  template <class Machine> MHA_KERNEL static int row(Machine& m, int i) { return m.thread() % warp_size / 4 + 8 * i; }
  template <class Machine> MHA_KERNEL static int lane(Machine& m) { return m.thread() % 4; }

  template <class Machine, class Call, class Row, class Score>
  MHA_KERNEL static void weigh(Machine& m, State& state, Shared q, Shared k, Shared, const Call& call, Index b,
                               Index first_key, Index keys_end, bool test, const Row& row_of, const Score& score) {
    const int l = m.thread() % warp_size;
    float dots[2][4] = {};
    const auto step = [&](int d) {
      std::uint32_t left[4], right[4];
      m.ldmatrix_x4(left, Panel::address(q, Lanes::a_row(l), 2 * d + Lanes::a_chunk(l)));
      m.ldmatrix_x4(right, Panel::address(k, Lanes::b_row(l), 2 * d + Lanes::b_chunk(l)));
      m.template mma_m16n8k16<T>(dots[0], left, right[0], right[1]);
      m.template mma_m16n8k16<T>(dots[1], left, right[2], right[3]);
    };
    if constexpr (Width > 128)  // the sums leave few registers
      MHA_ROLL for (int d = 0; d < depth_steps; ++d) step(d);
    else
      MHA_UNROLL for (int d = 0; d < depth_steps; ++d) step(d);
    MHA_UNROLL for (int i = 0; i < 2; ++i) MHA_UNROLL for (int j = 0; j < 4; ++j) state.s[i][j] =
        dots[j / 2][2 * i + j % 2];
    const Index k0 = first_key + l % 4 * 2;
    apply_policies(
        state.s, call, b, keys_end, test, row_of, [&](int j) { return k0 + j / 2 * 8 + j % 2; }, score);
    bool hidden = false;
    MHA_UNROLL for (int i = 0; i < 2; ++i) {
      const float rescale = weigh_row<lanes>(m, state.s[i], state.max[i], state.sum[i], hidden);
      MHA_UNROLL for (int d = 0; d < blocks; ++d) {
        state.o[d][2 * i] *= rescale;
        state.o[d][2 * i + 1] *= rescale;
      }
    }
    state.guarded = m.any(hidden);
  }

  template <class Machine> MHA_KERNEL static void accumulate(Machine& m, State& state, Shared, Shared v) {
    std::uint32_t weights[4];
    MHA_UNROLL for (int e = 0; e < 4; ++e) weights[e] =
        m.template pack<T>(state.s[e % 2][e / 2 * 2], state.s[e % 2][e / 2 * 2 + 1]);
    if (state.guarded && !all_finite<T>(m, v, panel_bytes)) return accumulate_seen(m, state, weights, v);
    MHA_UNROLL for (int d = 0; d < blocks; d += 2) {
      std::uint32_t right[4];
      load_values(m, right, v, d);
      m.template mma_m16n8k16<T>(state.o[d], weights, right[0], right[1]);
      m.template mma_m16n8k16<T>(state.o[d + 1], weights, right[2], right[3]);
    }
  }
  template <class Machine> MHA_KERNEL static void reduce(Machine& m, State& state) {
    MHA_UNROLL for (int i = 0; i < 2; ++i) MHA_UNROLL for (int other = 1; other < lanes; other *= 2) state.sum[i] +=
        m.shuffle_xor(state.sum[i], other);
  }
  template <class Machine> MHA_KERNEL static void store(Machine& m, const State& state, Shared to) {
    MHA_UNROLL for (int i = 0; i < 2; ++i) MHA_UNROLL for (int d = 0; d < blocks; ++d)
        MHA_UNROLL for (int e = 0; e < 2; ++e)
            m.store(to + (row(m, i) * Width + d * 8 + lane(m) * 2 + e) * 4, state.o[d][2 * i + e]);
  }

 private:
  /// Columns 8 d to 8 d + 15 of the values, as the right operands of two products.
  template <class Machine> MHA_KERNEL static void load_values(Machine& m, std::uint32_t (&to)[4], Shared v, int d) {
    const int l = m.thread() % warp_size;
    m.ldmatrix_x4_trans(to, Panel::address(v, Lanes::a_row(l), d + Lanes::a_chunk(l)));
  }

  /// Some value is not finite and some pair is hidden.
  template <class Machine>
  MHA_KERNEL static void accumulate_seen(Machine& m, State& state, const std::uint32_t (&weights)[4], Shared v) {
    std::uint32_t seen[4];
    MHA_UNROLL for (int e = 0; e < 4; ++e) seen[e] = PairBits<T>::ones(
        !is_hidden_weight(state.s[e % 2][e / 2 * 2]), !is_hidden_weight(state.s[e % 2][e / 2 * 2 + 1]));
    MHA_ROLL for (int d = 0; d < blocks; d += 2) {
      std::uint32_t right[4];
      load_values(m, right, v, d);
      MHA_UNROLL for (int to = 0; to < blocks; to += 2) if (to == d) MHA_UNROLL for (int c = 0; c < 2; ++c)
          multiply_seen<T>(m, state.o[to + c], weights, seen, right[2 * c], right[2 * c + 1]);
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
