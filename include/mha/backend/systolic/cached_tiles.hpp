// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include "../../cache/any_kv.hpp"
#include "../../cache/books.hpp"
#include "../../cache/kv_shape.hpp"
#include "../../cache/tiled_books.hpp"
#include "../../core/tensor.hpp"
#include "../simd/isa.hpp"
#include "kv_tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// What a call would pack of a cache that stores T, beside its rows: packed when rows are written, so that a step packs
/// its own. Values are in tiles; keys are rows of bfloat16 if T is another scalar, else the cache's own are read. A
/// block of rows has tiles for its positions, 64 by 64, of which those of up to 256 values lie together; positions that
/// go round share tiles modulo turning_places_. Of pages of rows of fewer positions the tiles are in pages of their own
/// (TiledPageBook).
///
/// What is not known to be right is null, and packed by the call. Nothing but rows that were written is read.
template <class T> class CachedTiles {
 public:
  static constexpr bool keeps_keys = !std::is_same_v<T, bfloat16>;
  static constexpr TileExtents extents{
      .rows = keeps_keys ? 1 : tile_side, .positions = key_block, .depth = keeps_keys ? 1 : tile_depth};

  CachedTiles(const KvShape& shape, Index layers, const BlockExtents& blocks)
      : heads_(shape.heads),
        dim_(shape.dim),
        value_dim_(shape.value_dim),
        rows_(blocks.rows),
        turning_(blocks.turning),
        together_(static_cast<Index>(std::clamp(std::bit_floor(static_cast<unsigned>(blocks.rows)), unsigned{key_block},
                                                unsigned{value_block}))),
        fixed_places_(round_up(blocks.rows - blocks.turning, together_)),
        turning_places_(blocks.turning > 0 ? round_up(blocks.turning, together_) + together_ : 0) {
    const Index places = fixed_places_ + turning_places_;
    tiles_ = Tensor<bfloat16, 5>(layers, heads_, blocks.blocks, places, round_up(value_dim_, tile_side));
    if (keeps_keys) keys_ = Tensor<bfloat16, 5>(layers, heads_, blocks.blocks, places, round_up(dim_, tile_depth));
    non_finite_ = Tensor<bool, 4>(layers, heads_, blocks.blocks, places / key_block);
    ends_ = Tensor<Index, 3>(layers, blocks.blocks, places / key_block);
    scratch_ = Tensor<bfloat16, 2>(heads_, static_cast<Index>(pack_scratch(value_dim_)));
  }

  std::size_t bytes() const {
    return (tiles_.size() + keys_.size() + scratch_.size()) * sizeof(bfloat16) + non_finite_.size() +
           ends_.size() * sizeof(Index);
  }

  /// Of a block's positions from k on, a multiple of 64: those below `end`, k + 64 at most. Others may be in them.
  ValueTiles at(Index layer, const InBlock& k, Index head, Index end) const {
    const Index place = place_of(k.position);
    if (!is_known(layer, k, end)) return {};
    return {&tiles_(layer, head, k.block, 0, 0) + offset(place), KvTiles::value_stride(together_),
            non_finite_(layer, head, k.block, place / key_block)};
  }

  /// Their keys, as rows filled up with zeros.
  const bfloat16* keys(Index layer, const InBlock& k, Index head, Index end) const requires(keeps_keys) {
    return is_known(layer, k, end) ? &keys_(layer, head, k.block, place_of(k.position), 0) : nullptr;
  }

  /// A source of a layer's rows has been given its keys and values from position from[b] of sequence b on.
  template <class Source, class Run>
  void write(Index layer, const Source& source, std::span<const Index> from, const Run& run) {
    Index cost = 0;
    for_each_64(source, from, [&](Index b, Index k) {
      end_of(layer, source.in_block(b, k)) = 0;  // until they are
      cost = std::min(cost, std::numeric_limits<Index>::max() / 2) + key_block;
    });
    const AnyKv<T> any(source);
    const Index width = value_dim_ + (keeps_keys ? dim_ : 0);
    run(Pack<Source>{heads_, 1, std::min(cost, std::numeric_limits<Index>::max() / width) * width, this, layer, &source,
                     &any, from, current_isa()});
    for_each_64(source, from, [&](Index b, Index k) {
      const InBlock at = source.in_block(b, k);
      end_of(layer, at) = at.position + std::min(source.keys(b) - k, key_block);
    });
  }

  /// Rows [from, from + count), the first ones of a block, have been copied to those of another, in every layer.
  void copy(Index from, Index to, Index count) {
    const Index source = from / rows_, target = to / rows_;
    // Before positions turn, the first ones are in the first places.
    const Index all = fixed_places_ + turning_places_;
    const Index places = turning_ > 0 && count >= rows_ ? all : std::min(all, round_up(count, together_));
    for (Index layer = 0; layer < tiles_.extent(0); ++layer) {
      for (Index head = 0; head < heads_; ++head) {
        std::copy_n(&tiles_(layer, head, source, 0, 0), std::ptrdiff_t{places} * tiles_.extent(4),
                    &tiles_(layer, head, target, 0, 0));
        if (keeps_keys)
          std::copy_n(&keys_(layer, head, source, 0, 0), std::ptrdiff_t{places} * keys_.extent(4),
                      &keys_(layer, head, target, 0, 0));
        std::copy_n(&non_finite_(layer, head, source, 0), places / key_block, &non_finite_(layer, head, target, 0));
      }
      for (Index i = 0; i < places / key_block; ++i) {
        const Index end = ends_(layer, source, i);
        ends_(layer, target, i) = turning_ > 0 ? end : std::min(end, count);
      }
    }
  }

 private:
  /// All that is new of one head: Items.
  template <class Source> struct Pack {
    std::ptrdiff_t rows;
    Index columns, cost;
    CachedTiles* to;
    Index layer;
    const Source* source;
    const AnyKv<T>* any;
    std::span<const Index> from;
    IsaLevel level;

    void operator()(std::ptrdiff_t row, Index) const {
      const Index head = static_cast<Index>(row);
      for_each_64(*source, from, [&](Index b, Index k) {
        pack_values(*any, b, head, k, any->keys(b), level, to->value_dim_,
                    to->packed(layer, source->in_block(b, k), head), &to->scratch_(head, 0));
        if constexpr (keeps_keys) {
          const InBlock at = source->in_block(b, k);
          pack_keys(*any, b, head, k, any->keys(b), level, to->dim_,
                    &to->keys_(layer, head, at.block, to->place_of(at.position), 0));
        }
      });
    }
  };

  /// f(b, first position) for every 64 of which one is held, from those that hold from[b] on.
  template <class Source, class F>
  static void for_each_64(const Source& source, std::span<const Index> from, const F& f) {
    for (Index b = 0; b < static_cast<Index>(from.size()); ++b) {
      const Index n = source.keys(b);
      for (Index k = from[static_cast<std::size_t>(b)]; k < n; k += key_block) {
        k = detail::held(source, b, k / key_block * key_block);
        if (k >= n) break;
        k = k / key_block * key_block;
        f(b, k);
      }
    }
  }

  /// Where a position's tiles are among its block's.
  Index place_of(Index position) const {
    return position < fixed_places_ ? position : fixed_places_ + (position - fixed_places_) % turning_places_;
  }
  std::ptrdiff_t offset(Index place) const {
    return std::ptrdiff_t{place / together_ * together_} * tiles_.extent(4) + KvTiles::value_offset(place % together_);
  }
  bool is_known(Index layer, const InBlock& k, Index end) const {
    const Index known = ends_(layer, k.block, place_of(k.position) / key_block);
    return known >= end && known <= k.position + key_block;
  }
  Index& end_of(Index layer, const InBlock& k) { return ends_(layer, k.block, place_of(k.position) / key_block); }
  PackedValues packed(Index layer, const InBlock& k, Index head) {
    const Index place = place_of(k.position);
    return {&tiles_(layer, head, k.block, 0, 0) + offset(place), KvTiles::value_stride(together_),
            &non_finite_(layer, head, k.block, place / key_block)};
  }

  Index heads_, dim_, value_dim_, rows_, turning_;
  Index together_;                       ///< positions whose tiles lie together
  Index fixed_places_, turning_places_;  ///< positions of a block that have tiles of their own, and that share some
  Tensor<bfloat16, 5> tiles_;            ///< (layers, Hkv, blocks, places, Dv), the last two as KvTiles says
  Tensor<bfloat16, 5> keys_;             ///< (layers, Hkv, blocks, places, D rounded up)
  Tensor<bool, 4> non_finite_;           ///< (layers, Hkv, blocks, places / 64)
  Tensor<Index, 3> ends_;                ///< (layers, blocks, places / 64): the position up to which 64 are known, or 0
  Tensor<bfloat16, 2> scratch_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
