// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../cache/any_kv.hpp"
#include "../../core/check.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Where the rows of a key block lie, 16 by 16: row i of tile t at tile[t] + i·stride, D / 32 chunks of 32 numbers. A
/// tile of which no key is wanted is where another one is.
struct KeyRows {
  static constexpr Index tiles = key_block / tile_side;

  const bfloat16* tile[std::size_t{tiles}] = {};
  std::ptrdiff_t stride = 0;

  KeyRows() = default;
  /// All side by side, from `first` on.
  KeyRows(const bfloat16* first, std::ptrdiff_t of_stride)
      : tile{first, first + tile_side * of_stride, first + 2 * tile_side * of_stride,
             first + 3 * tile_side * of_stride},
        stride(of_stride) {}

  bool exist() const { return tile[0] != nullptr; }
  /// Numbers from tile t to the next.
  std::ptrdiff_t apart(Index t) const { return tile[t + 1] - tile[t]; }
  /// Whether tiles follow each other at one distance: those that a product takes at once. Two always do.
  Index together() const { return apart(1) == apart(0) && apart(2) == apart(0) ? tiles : 2; }

  /// Whether tiles are loaded from here as fast as from rows of `width` side by side: whole cache lines, and of rows
  /// apart not many pages, nor more of all keys than fit a second cache, whose places they take up by their distance.
  bool near(Index keys, std::ptrdiff_t width) const {
    constexpr std::ptrdiff_t most_apart = 256, most_in_all = std::ptrdiff_t{1} << 19;  // 1 MiB
    return stride % tile_depth == 0 && stride >= 0 &&
           (stride == width || (stride <= most_apart && stride * keys <= most_in_all)) &&
           std::all_of(tile, tile + tiles, [](const bfloat16* at) {
             return reinterpret_cast<std::uintptr_t>(at) % (sizeof(bfloat16) * tile_depth) == 0;
           });
  }
};

/// Keys and values of one sequence and head as A tiles, in bfloat16 and in the order of the keys: blocks of 256, those
/// of which the source has dropped all are left out.
///
/// Shapes    values   (blocks, 4): where the values of 64 keys are, at their source or packed, the transposed:
///                    tile d, s (16 of Dv, 32 keys) at tiles + d·stride + s·512; zeros beyond Dv. Those behind the
///                    last key and of dropped keys are arbitrary, and non_finite counts them
///           key_rows (blocks, 4): where the keys of 64 are, at their source or packed; all sizes rounded up
struct KvTiles {
  const ValueTiles* values;
  const KeyRows* key_rows;
  Index head_dim, value_dim;

  constexpr Index depth_steps() const { return (head_dim + tile_depth - 1) / tile_depth; }
  constexpr Index value_tiles() const { return (value_dim + tile_side - 1) / tile_side; }

  static constexpr std::size_t padded(Index n) { return static_cast<std::size_t>(round_up(n, value_block)); }
  static constexpr std::size_t key_size(Index n, Index head_dim) {
    return padded(n) * static_cast<std::size_t>(round_up(head_dim, tile_depth));
  }
  static constexpr std::size_t value_size(Index n, Index value_dim) {
    return padded(n) * static_cast<std::size_t>(round_up(value_dim, tile_side));
  }

  /// Where values of so many keys lie together: the distance between the tiles of neighbouring d, and how far the tiles
  /// of key k, a multiple of 32, are from those of the first.
  static constexpr Index value_stride(Index together) { return together / tile_depth * tile_size; }
  static constexpr Index value_offset(Index k) { return k / tile_depth * tile_size; }
};

/// Where 64 values are packed: what ValueTiles names.
struct PackedValues {
  bfloat16* tiles;
  Index stride;
  bool* non_finite;
};

/// bfloat16 numbers of scratch for pack_values().
constexpr std::size_t pack_scratch(Index value_dim) {
  return static_cast<std::size_t>(tile_depth) * static_cast<std::size_t>(round_up(value_dim, tile_depth));
}

/// f(run, its first key) for the runs that hold keys [begin, end) of a source; dropped ones are left out.
template <class T, class F> void for_each_run(const AnyKv<T>& source, Index b, Index g, Index begin, Index end, F&& f) {
  for (Index k = source.held(b, begin, end); k < end;) {
    const auto run = source.run(b, g, k, end);
    f(run, k);
    k = source.held(b, k + run.count, end);
  }
}

/// Blocks of 64 keys of a sequence and head that are fit to be read where they are, asked for in their order: those
/// whose keys lie together 16 by 16, and where the source's memory has rows behind its end and for dropped keys, all
/// of which a key is held. Of a source of another scalar than bfloat16 those that it keeps in bfloat16 too.
template <class T> class KeysInPlace {
 public:
  KeysInPlace(const AnyKv<T>& source, Index b, Index g, Index n, Index head_dim)
      : source_(source),
        b_(b),
        g_(g),
        n_(n),
        rows_(source.keeps_values() ? round_up(n, tile_side) : n),
        width_(round_up(head_dim, tile_depth)),
        possible_(possible(source, head_dim)),
        near_(source.drops() && source.room().keys > 0 ? std::min(n, source.room().keys) : n) {}

  /// Whether there may be any.
  static bool possible(const AnyKv<T>& source, Index head_dim) {
    if (!std::is_same_v<T, bfloat16>) return source.keeps_keys();
    return (head_dim % tile_depth == 0 || source.keeps_values()) && source.room().together >= tile_side;
  }

  /// Where keys [begin, begin + 64) are; none where they have to be packed. Not all are dropped.
  KeyRows at(Index begin) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (!possible_ || !(source_.keeps_values() || rows_ - begin >= key_block)) return {};
      if (!find(begin)) return {};
      KeyRows rows(run_.key + (begin - first_) * run_.key_stride, run_.key_stride);
      for (Index t = 1; t < KeyRows::tiles; ++t) {
        const Index k = begin + t * tile_side;
        if (k + tile_side <= first_ + run_.count) continue;
        if (k >= n_) {
          rows.tile[t] = rows.tile[t - 1];
          continue;
        }
        if (!find(k) || run_.key_stride != rows.stride) return {};
        for (Index i = t; i < KeyRows::tiles; ++i) rows.tile[i] = run_.key + (i - t) * tile_side * run_.key_stride;
      }
      if (rows.near(near_, width_)) return rows;
    } else if (const bfloat16* const rows = source_.key_tiles(b_, g_, begin)) {
      return {rows, width_};
    }
    return {};
  }

  /// Whether a run of keys stays in place as the source grows to its room.
  bool stays() const {
    if constexpr (std::is_same_v<T, bfloat16>) {
      const Index first = possible_ ? source_.held(b_, 0, n_) : n_;
      if (first >= n_) return possible_;
      const KvRun<T> run = source_.run(b_, g_, first, n_);
      return KeyRows(run.key, run.key_stride).near(std::max(near_, source_.room().keys), width_);
    } else {
      return possible_;
    }
  }

 private:
  /// Whether the 16 keys from k on are in a run.
  bool find(Index k) {
    if (k >= first_ && k + tile_side <= first_ + run_.count) return true;
    if (!source_.keeps_values() && source_.held(b_, k, n_) != k) return false;
    first_ = k;
    run_ = source_.run(b_, g_, k, rows_);
    return run_.count >= tile_side;
  }

  const AnyKv<T>& source_;
  Index b_, g_, n_, rows_, width_;
  bool possible_;
  Index near_;  ///< keys that there are, of a ring its rows
  KvRun<T> run_{};
  Index first_ = 0;  ///< position of the run
};

/// Rounds keys [begin, min(begin + 64, n)) of a source into rows (64, D): zeros beyond D and n, and where they are
/// dropped.
template <class T>
void pack_keys(const AnyKv<T>& source, Index b, Index g, Index begin, Index n, IsaLevel level, Index head_dim,
               bfloat16* rows) {
  const std::ptrdiff_t width = round_up(head_dim, tile_depth);
  const Index end = std::min(n, begin + key_block);
  if (source.drops()) std::fill(rows, rows + (end - begin) * width, bfloat16{});
  for_each_run(source, b, g, begin, end, [&](const KvRun<T>& run, Index k) {
    round_rows<T>(level, {run.key, run.key_stride, 1, run.count, head_dim}, rows + (k - begin) * width, width,
                  tile_depth);
  });
  std::fill(rows + (end - begin) * width, rows + key_block * width, bfloat16{});
}

/// Packs their values, zeros beyond n and where they are dropped.
template <class T>
void pack_values(const AnyKv<T>& source, Index b, Index g, Index begin, Index n, IsaLevel level, Index value_dim,
                 const PackedValues& to, bfloat16* scratch) {
  const std::ptrdiff_t width = round_up(value_dim, tile_depth);
  bool non_finite = false;
  const auto transpose = [&](const bfloat16* rows, std::ptrdiff_t stride, Index first) {
    simd::with_isa(level, [&](auto isa) {
      decltype(isa)::template run<PackTransposedBody>(rows, stride, blocks_of(value_dim, tile_side),
                                                      to.tiles + KvTiles::value_offset(first - begin), to.stride,
                                                      &non_finite);
      return 0;
    });
  };
  for (Index first = begin; first < begin + key_block; first += tile_depth) {
    const Index end = std::clamp(n, first, first + tile_depth);
    if constexpr (std::is_same_v<T, bfloat16>)
      if (end == first + tile_depth && value_dim % tile_side == 0 && source.held(b, first, end) == first)
        if (const auto run = source.run(b, g, first, end); run.count == tile_depth) {
          transpose(run.value, run.value_stride, first);
          continue;
        }
    if (source.drops()) std::fill(scratch, scratch + (end - first) * width, bfloat16{});
    for_each_run(source, b, g, first, end, [&](const KvRun<T>& run, Index k) {
      round_rows<T>(level, {run.value, run.value_stride, 1, run.count, value_dim}, scratch + (k - first) * width, width,
                    tile_depth);
    });
    std::fill(scratch + (end - first) * width, scratch + tile_depth * width, bfloat16{});
    transpose(scratch, width, first);
  }
  *to.non_finite = non_finite;
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
