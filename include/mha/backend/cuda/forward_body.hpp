// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../policy/mask.hpp"
#include "forward_rows.hpp"
#include "machine.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// One block of fused attention: softmax(scale · q kᵀ where visible) v for a tile of query rows of one head, on tensor
/// cores, with the maximum and the sum of each row carried along.
///
/// Keys and values come two stages deep: while a tile is multiplied, the next one is under way.
/// Numerics  products of 16-bit numbers summed in float; weights rounded to 16 bits against the values, not in the sum.
///           A logit that infinite data makes −∞ is hidden from non-finite values in partial tiles and under a score
///           only.
/// Source    Dao 2023, FlashAttention-2, algorithm 1
template <class Machine, class Shape, class Call> class ForwardBlock : ForwardRows<Machine, Shape, Call> {
  using Base = ForwardRows<Machine, Shape, Call>;
  using Base::count_;
  using Base::key_depth;
  using Base::key_steps;
  using Base::keys_;
  using Base::m_;
  using Base::out_;
  using Base::queries_;
  using Base::strips;
  using Base::value_steps;
  using Base::values_;
  using typename Base::Fragments;
  using typename Base::Key;
  using typename Base::Logits;
  using typename Base::Pairs;
  using typename Base::Query;
  using typename Base::T;
  using typename Base::Tile;
  using typename Base::Value;
  static constexpr int head_depth = Shape::head_dim / 16;  // steps of products

 public:
  MHA_KERNEL ForwardBlock(Machine& machine, const Call& call, RowBlocks::Place place) : Base(machine, call, place) {}

  MHA_KERNEL void run() {
    if (count_ <= 0) return;  // of a short sequence
    this->clear();
    const auto tiles = this->tiles();

    KeyTile tile = tiles.first();
    if (tile) {
      this->load_queries();
      this->load_keys(tile, 0);
      m_.commit();
      this->load_values(tile, 0);
      m_.commit();
      m_.template wait<1>();
      m_.sync();  // the queries and the first keys are here for all
      if constexpr (Shape::keeps_queries) keep_queries();
    }
    for (int stage = 0; tile; stage ^= 1) {
      const KeyTile next = tiles.after(tile);
      if (next) this->load_keys(next, stage ^ 1);
      m_.commit();
      const TileVisibility here = this->visibility(tile);
      Tile s;
      Pairs hidden = {};
      if (here != TileVisibility::none) {
        multiply_keys(s, stage);
        this->finish_logits(s, hidden, tile.index, here == TileVisibility::partial);
        this->softmax(s);
      }
      m_.template wait<1>();
      m_.sync();  // the values are here for all, and the keys are read
      if (next) {
        this->load_values(next, stage ^ 1);
        m_.commit();
      }
      if (here != TileVisibility::none) {
        if ((here == TileVisibility::partial || Logits::has_score) && m_.any(Base::some(hidden)) &&
            !all_finite<T>(m_, values_ + stage * Shape::value_bytes, Shape::value_bytes))
          this->multiply_visible_values([&](Fragments& a, int k) { this->pack_weights(a, s, k); }, hidden, stage);
        else
          multiply_values(s, stage);
      }
      if (next) {
        m_.template wait<1>();
        m_.sync();  // the next keys are here for all, and the values are read
      }
      tile = next;
    }
    this->write();
  }

 private:
  // What each lane names to ldmatrix.
  MHA_KERNEL Shared query_lane() const {
    return Query::address(queries_, this->warp_row() + Lanes::a_row(this->lane()), Lanes::a_chunk(this->lane()));
  }
  MHA_KERNEL Shared key_lane(int stage) const {
    return Key::address(keys_ + stage * Shape::key_bytes, Lanes::b_row(this->lane()), Lanes::b_chunk(this->lane()));
  }

  /// Rows of this warp at depth 16 k.
  MHA_KERNEL void load_query(Fragments& a, Shared query, int k) const {
    MHA_UNROLL for (int i = 0; i < strips; ++i)
        m_.ldmatrix_x4(a[i], Query::beside(query, 2 * k) + i * 16 * Query::bytes);
  }
  MHA_KERNEL void keep_queries() {
    const Shared query = query_lane();
    MHA_UNROLL for (int k = 0; k < head_depth; ++k) load_query(kept_[k], query, k);
  }

  /// s = q kᵀ
  MHA_KERNEL void multiply_keys(Tile& s, int stage) const {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int n = 0; n < key_steps; ++n)
        MHA_UNROLL for (int e = 0; e < 4; ++e) s[i][n][e] = 0;
    const Shared key = key_lane(stage), query = Shape::keeps_queries ? Shared{0} : query_lane();
    MHA_UNROLL for (int k = 0; k < head_depth; ++k) {
      Fragments a;
      if constexpr (Shape::keeps_queries) {
        MHA_UNROLL for (int e = 0; e < 4; ++e) a[0][e] = kept_[k][0][e];
      } else {
        load_query(a, query, k);
      }
      MHA_UNROLL for (int n = 0; n < key_steps; n += 2) {
        std::uint32_t b[4];
        m_.ldmatrix_x4(b, Key::beside(key, 2 * k) + n * 8 * Key::bytes);
        MHA_UNROLL for (int i = 0; i < strips; ++i) {
          m_.template mma_m16n8k16<T>(s[i][n], a[i], b[0], b[1]);
          m_.template mma_m16n8k16<T>(s[i][n + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  /// out += s v
  MHA_KERNEL void multiply_values(const Tile& s, int stage) {
    const Shared value = this->value_lane(stage);
    MHA_UNROLL for (int k = 0; k < key_depth; ++k) {
      Fragments a;
      this->pack_weights(a, s, k);
      MHA_UNROLL for (int d = 0; d < value_steps; d += 2) {
        std::uint32_t b[4];
        m_.ldmatrix_x4_trans(b, Value::beside(value, d) + k * 16 * Value::bytes);
        MHA_UNROLL for (int i = 0; i < strips; ++i) {
          m_.template mma_m16n8k16<T>(out_[i][d], a[i], b[0], b[1]);
          m_.template mma_m16n8k16<T>(out_[i][d + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  Fragments kept_[std::size_t{Shape::keeps_queries ? head_depth : 1}];
};

/// One block of the launch that a plan describes.
template <class Machine, class Shape, class Call>
MHA_KERNEL void forward_body(Machine& m, const ForwardParams<Call>& p) {
  const RowBlocks::Place place = p.blocks[m.block().x];
  if (p.blocks.fewest > 0 && p.call.queries(place.b) < p.blocks.fewest) return;
  ForwardBlock<Machine, Shape, Call>(m, p.call, place).run();
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
