// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "../../cache/any_kv.hpp"
#include "../../cache/books.hpp"
#include "../../cache/kv_shape.hpp"
#include "../../core/tensor.hpp"
#include "../simd/isa.hpp"
#include "kv_tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The values of a cache in bfloat16 as the tiles that a call would pack, beside their rows: packed when rows are
/// written, so that a step packs its own. Every sequence has a block of rows, position p in its row p, and as tiles
/// whole steps of `value_block` positions.
///
/// What is not known to be right is null, and packed by the call: forget() is told of rows that came another way, and
/// their tiles are made with the next rows written behind them. Nothing but rows that were written is read.
class CachedValues {
 public:
  using Scalar = bfloat16;

  CachedValues(const KvShape& shape, Index layers, const BlockExtents& extents)
      : heads_(shape.heads),
        value_dim_(shape.value_dim),
        blocks_(extents.blocks),
        rows_(extents.rows),
        tiles_(layers, extents.blocks, shape.heads, round_up(extents.rows, value_block),
               round_up(shape.value_dim, tile_side)),
        non_finite_(layers, extents.blocks, shape.heads, round_up(extents.rows, value_block) / key_block),
        packed_(static_cast<std::size_t>(layers) * static_cast<std::size_t>(extents.blocks)),
        scratch_(shape.heads, static_cast<Index>(pack_scratch(shape.value_dim))) {
    tasks_.reserve(static_cast<std::size_t>(extents.blocks));
  }

  std::size_t bytes() const { return tiles_.size() * sizeof(bfloat16) + non_finite_.size(); }

  /// Of a block's head, if they are of its first `length` rows.
  ValueTiles at(Index layer, Index block, Index head, Index length) const {
    if (packed_[index(layer, block)] != length) return {};
    return {&tiles_(layer, block, head, 0, 0), &non_finite_(layer, block, head, 0)};
  }

  /// These rows of a layer's values (blocks, rows, Hkv, Dv) have been written: ascending, those of each block without
  /// gaps and not beyond what was written of it before.
  template <class Run>
  void write(Index layer, const TensorView<const bfloat16, 4>& values, std::span<const Index> rows, const Run& run) {
    tasks_.clear();
    Index cost = 0;
    for (std::size_t i = 0; i < rows.size();) {
      const Index block = rows[i] / rows_, first = rows[i] % rows_;
      Index end = first;
      for (; i < rows.size() && rows[i] / rows_ == block; ++i) end = rows[i] % rows_ + 1;
      Index& packed = packed_[index(layer, block)];
      tasks_.push_back({block, std::min(packed, first) / key_block * key_block, end});
      packed = 0;  // until they are
      cost = std::min(cost, std::numeric_limits<Index>::max() / 2) + (end - tasks_.back().begin);
    }
    const ContiguousKv<bfloat16> source{values, values};
    const AnyKv<bfloat16> any(source);
    run(Pack{heads_, 1, std::min(cost, std::numeric_limits<Index>::max() / value_dim_) * value_dim_, this, layer, &any,
             current_isa()});
    for (const Task& task : tasks_) packed_[index(layer, task.block)] = task.end;
  }

  /// Rows from this one on to the end of its block are no longer those that were written, in every layer or in one.
  void forget(Index row) {
    for (std::size_t i = static_cast<std::size_t>(row / rows_); i < packed_.size();
         i += static_cast<std::size_t>(blocks_))
      packed_[i] = std::min(packed_[i], row % rows_);
  }
  void forget(Index layer, std::span<const Index> rows) {
    for (const Index row : rows) {
      Index& packed = packed_[index(layer, row / rows_)];
      packed = std::min(packed, row % rows_);
    }
  }

 private:
  struct Task {
    Index block, begin, end;
  };

  /// All tasks of one head: Items.
  struct Pack {
    std::ptrdiff_t rows;
    Index columns, cost;
    CachedValues* to;
    Index layer;
    const AnyKv<bfloat16>* source;
    IsaLevel level;

    void operator()(std::ptrdiff_t row, Index) const {
      const Index head = static_cast<Index>(row);
      const KvTiles sizes{nullptr, nullptr, nullptr, 0, to->value_dim_};
      for (const Task& t : to->tasks_) {
        for (Index k = t.begin; k < t.end; k += key_block) {
          const Index block = k / value_block * value_block;
          pack_values(*source, t.block, head, k, t.end, level, sizes,
                      {&to->tiles_(layer, t.block, head, 0, 0) + sizes.value_offset(block),
                       &to->non_finite_(layer, t.block, head, block / key_block)},
                      &to->scratch_(head, 0));
        }
      }
    }
  };

  std::size_t index(Index layer, Index block) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(blocks_) + static_cast<std::size_t>(block);
  }

  Index heads_, value_dim_, blocks_, rows_;
  Tensor<bfloat16, 5> tiles_;           ///< (layers, blocks, Hkv, rows, Dv), the last two as KvTiles says
  Tensor<std::uint8_t, 4> non_finite_;  ///< (layers, blocks, Hkv, rows / 64)
  std::vector<Index> packed_;           ///< (layers, blocks): how many rows the tiles are of, zeros behind them
  Tensor<bfloat16, 2> scratch_;
  std::vector<Task> tasks_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
