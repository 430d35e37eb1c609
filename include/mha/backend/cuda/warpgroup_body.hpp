// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "forward_rows.hpp"
#include "machine.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// One block of the same attention as ForwardBlock's on the asynchronous products of warpgroups, 64 rows each.
///
/// While a tile's values are multiplied by its weights, the next tile's logits become weights; keys and values come two
/// stages deep, a step ahead. A step has one barrier, which also tells whether a pair of the next tile is hidden.
/// Numerics  those of ForwardBlock; its bits are others, because the products add in another order
/// Source    Shah et al. 2024, FlashAttention-3, section 3.2
template <class Machine, class Shape, class Call> class WarpgroupBlock : ForwardRows<Machine, Shape, Call> {
  using Base = ForwardRows<Machine, Shape, Call>;
  using Base::count_;
  using Base::key_depth;
  using Base::keys_;
  using Base::m_;
  using Base::out_;
  using Base::queries_;
  using Base::values_;
  using typename Base::Fragments;
  using typename Base::Logits;
  using typename Base::Pairs;
  using typename Base::Query;
  using typename Base::Rows;
  using typename Base::T;
  using typename Base::Tile;
  static_assert(Base::strips == 1);
  using Weights = std::uint32_t[std::size_t{key_depth}][4];

 public:
  MHA_KERNEL WarpgroupBlock(Machine& machine, const Call& call, RowBlocks::Place place) : Base(machine, call, place) {}

  MHA_KERNEL void run() {
    if (count_ <= 0) return;  // of a short sequence
    this->clear();
    const auto tiles = this->tiles();
    KeyTile tile = tiles.first();
    if (tile) {
      KeyTile next = tiles.after(tile);
      this->load_queries();
      this->load_keys(tile, 0);
      m_.commit();
      this->load_values(tile, 0);
      if (next) this->load_keys(next, 1);
      m_.commit();
      m_.template wait<1>();
      m_.fence_proxy();
      m_.sync();  // the queries and the first keys are here for all
      Tile s;
      Pairs hidden = {};
      Rows rescale;
      Weights weights;
      multiply_keys(s, 0);
      m_.template wgmma_wait<0>();
      m_.hold(s[0]);
      finish(s, hidden, tile);
      this->follow(s, rescale);
      this->weigh(s);
      int stage = 0;
      for (;; stage ^= 1) {
        pack(weights, s);
        m_.template wait<0>();
        m_.fence_proxy();
        // This tile's values and the next keys are here for all; the keys of this one and the values before are read.
        if (m_.sync_any(Base::some(hidden)) && !values_finite(stage)) multiply_visible(weights, hidden, stage);
        if (!next) break;
        const KeyTile after = tiles.after(next);
        multiply_keys(s, stage ^ 1);
        multiply_values(weights, stage);
        this->load_values(next, stage ^ 1);
        if (after) this->load_keys(after, stage);
        m_.commit();
        m_.template wgmma_wait<1>();
        m_.hold(s[0]);
        hidden[0] = 0;
        finish(s, hidden, next);
        const bool grows = this->follow(s, rescale);
        this->weigh(s);
        m_.template wgmma_wait<0>();
        m_.hold(out_[0]);
        m_.hold(weights);
        if (grows) this->rescale_outputs(rescale);
        next = after;
      }
      multiply_values(weights, stage);
      m_.template wgmma_wait<0>();
      m_.hold(out_[0]);
    }
    this->write();
  }

 private:
  /// The warp's first row of its warpgroup.
  MHA_KERNEL int warpgroup_row() const { return m_.uniform(m_.thread() / warpgroup_size) * 64; }

  /// A warp that sees nothing of the tile takes part: its pairs are hidden one by one.
  MHA_KERNEL void finish(Tile& s, Pairs& hidden, KeyTile tile) const {
    this->finish_logits(s, hidden, tile.index, this->visibility(tile) != TileVisibility::full);
  }

  /// s = q kᵀ, a group of products.
  MHA_KERNEL void multiply_keys(Tile& s, int stage) const {
    const Shared query = queries_ + warpgroup_row() * Query::bytes, key = keys_ + stage * Shape::key_bytes;
    m_.wgmma_fence();
    MHA_UNROLL for (int k = 0; k < Shape::head_dim / 16; ++k) {
      constexpr int chunks = Query::group;
      const int panel = 2 * k / chunks, chunk = 2 * k % chunks;
      m_.template wgmma<T, Shape::keys>(s[0], query + panel * Query::panel_bytes + chunk * 16,
                                        key + panel * Base::Key::panel_bytes + chunk * 16, k > 0);
    }
    m_.wgmma_commit();
  }

  /// out += weights · v, a group of products.
  MHA_KERNEL void multiply_values(const Weights& weights, int stage) {
    const Shared value = values_ + stage * Shape::value_bytes;
    m_.wgmma_fence();
    MHA_UNROLL for (int k = 0; k < key_depth; ++k) m_.template wgmma<T, Shape::value_dim>(
        out_[0], weights[k], value + k * 16 * Base::Value::bytes, Base::Value::panel_bytes);
    m_.wgmma_commit();
  }

  MHA_KERNEL void pack(Weights& weights, const Tile& s) const {
    MHA_UNROLL for (int k = 0; k < key_depth; ++k) {
      Fragments a;
      this->pack_weights(a, s, k);
      MHA_UNROLL for (int e = 0; e < 4; ++e) weights[k][e] = a[0][e];
    }
  }

  /// The same over visible pairs; then the values are zeros, so that multiply_values() adds nothing.
  MHA_KERNEL void multiply_visible(const Weights& weights, const Pairs& hidden, int stage) {
    const auto packed = [&](Fragments& a, int k) { MHA_UNROLL for (int e = 0; e < 4; ++e) a[0][e] = weights[k][e]; };
    this->multiply_visible_values(packed, hidden, stage);
    m_.sync();
    constexpr Shared pass = Shape::threads * 16;
    MHA_ROLL for (Shared at = m_.thread() * 16; at < Shape::value_bytes; at += pass)
        m_.store(values_ + stage * Shape::value_bytes + at, Chunk{});
    m_.fence_proxy();
    m_.sync();
  }

  /// Whether all values of a tile are, each warp having looked at its part.
  MHA_KERNEL bool values_finite(int stage) const {
    constexpr Shared part = Shape::value_bytes / Shape::warps;
    const Shared from = values_ + stage * Shape::value_bytes + m_.thread() / warp_size * part;
    return !m_.sync_any(!all_finite<T>(m_, from, part));
  }
};

/// One block of the launch that a plan describes.
template <class Machine, class Shape, class Call>
MHA_KERNEL void warpgroup_body(Machine& m, const ForwardParams<Call>& p) {
  const RowBlocks::Place place = p.blocks[m.block().x];
  if (p.blocks.fewest > 0 && p.call.queries(place.b) < p.blocks.fewest) return;
  WarpgroupBlock<Machine, Shape, Call>(m, p.call, place).run();
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
