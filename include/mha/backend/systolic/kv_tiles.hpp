// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../cache/any_kv.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Where the rows of a key block lie: row i at first + i·stride, D / 32 chunks of 32 numbers.
struct KeyRows {
  const bfloat16* first;
  std::ptrdiff_t stride;

  /// Whether tiles are loaded from here as fast as from rows of `width` side by side: whole cache lines, not many
  /// pages, and of all keys not more than fit a second cache, whose places rows apart take up by their distance.
  bool near(Index keys, std::ptrdiff_t width) const {
    constexpr std::ptrdiff_t most_apart = 256, most_in_all = std::ptrdiff_t{1} << 19;  // 1 MiB
    return stride % tile_depth == 0 && stride >= 0 && stride <= most_apart &&
           (stride == width || stride * keys <= most_in_all) &&
           reinterpret_cast<std::uintptr_t>(first) % (sizeof(bfloat16) * tile_depth) == 0;
  }
};

/// Keys and values of one sequence and head as A tiles, in bfloat16 and in absolute order of the keys: what is packed
/// stays where it is when keys are appended.
///
/// Shapes    keys   (Lk, D)                                    of blocks that are not read where they are; zeros
///                                                             beyond D and Lk
///           values (Lk / 256, Dv / 16, 8, 16 of Dv, 32 keys)  the transposed; zeros beyond Dv and Lk
///           key_rows   (Lk / 64): where the keys of a block are, at their source or in `keys`
///           non_finite (Lk / 64): whether a value of that key block is NaN or infinite; all sizes rounded up
struct KvTiles {
  bfloat16* keys;
  const bfloat16* values;
  KeyRows* key_rows;
  const std::uint8_t* non_finite;
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

  /// Distance between the value tiles of neighbouring d of one block.
  static constexpr std::ptrdiff_t value_tile_stride = std::ptrdiff_t{value_block / tile_depth} * tile_size;

  /// A tiles of the values from key k on, a multiple of 32, within its block.
  const bfloat16* value_tiles_at(Index k) const { return values + value_offset(k); }
  constexpr std::ptrdiff_t value_offset(Index k) const {
    return k / value_block * value_tiles() * value_tile_stride + k % value_block / tile_depth * tile_size;
  }
};

/// Where values are packed: what KvTiles reads.
struct PackedValues {
  bfloat16* values;
  std::uint8_t* non_finite;
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

/// Rounds keys [begin, min(begin + 64, n)) of a source, or finds them fit to be read where they are: `begin` is a
/// multiple of 64. Dropped ones are zeros.
template <class T>
void pack_keys(const AnyKv<T>& source, Index b, Index g, Index begin, Index n, IsaLevel level, const KvTiles& to) {
  KeyRows& at = to.key_rows[begin / key_block];
  if constexpr (std::is_same_v<T, bfloat16>)
    if (n - begin >= key_block && to.head_dim % tile_depth == 0 && source.held(b, begin, n) == begin) {
      const auto run = source.run(b, g, begin, begin + key_block);
      at = {run.key, run.key_stride};
      if (run.count == key_block && at.near(n, to.head_dim)) return;
    }
  const std::ptrdiff_t width = round_up(to.head_dim, tile_depth);
  bfloat16* const rows = to.keys + begin * width;
  at = {rows, width};
  const Index end = std::min(n, begin + key_block);
  if (source.drops()) std::fill(rows, rows + (end - begin) * width, bfloat16{});
  for_each_run(source, b, g, begin, end, [&](const KvRun<T>& run, Index k) {
    round_rows<T>(level, {run.key, run.key_stride, 1, run.count, to.head_dim}, rows + (k - begin) * width, width,
                  tile_depth);
  });
  std::fill(rows + (end - begin) * width, rows + key_block * width, bfloat16{});
}

/// The same for their values, of the sizes of `to`.
template <class T>
void pack_values(const AnyKv<T>& source, Index b, Index g, Index begin, Index n, IsaLevel level, const KvTiles& to,
                 const PackedValues& at, bfloat16* scratch) {
  const std::ptrdiff_t width = round_up(to.value_dim, tile_depth);
  bool non_finite = false;
  const auto transpose = [&](const bfloat16* rows, std::ptrdiff_t stride, Index first) {
    simd::with_isa(level, [&](auto isa) {
      decltype(isa)::template run<PackTransposedBody>(
          rows, stride, to.value_tiles(), at.values + to.value_offset(first), KvTiles::value_tile_stride, &non_finite);
      return 0;
    });
  };
  for (Index first = begin; first < begin + key_block; first += tile_depth) {
    const Index end = std::clamp(n, first, first + tile_depth);
    if constexpr (std::is_same_v<T, bfloat16>)
      if (end == first + tile_depth && to.value_dim % tile_side == 0 && source.held(b, first, end) == first)
        if (const auto run = source.run(b, g, first, end); run.count == tile_depth) {
          transpose(run.value, run.value_stride, first);
          continue;
        }
    if (source.drops()) std::fill(scratch, scratch + (end - first) * width, bfloat16{});
    for_each_run(source, b, g, first, end, [&](const KvRun<T>& run, Index k) {
      round_rows<T>(level, {run.value, run.value_stride, 1, run.count, to.value_dim}, scratch + (k - first) * width,
                    width, tile_depth);
    });
    std::fill(scratch + (end - first) * width, scratch + tile_depth * width, bfloat16{});
    transpose(scratch, width, first);
  }
  at.non_finite[begin / key_block] = non_finite;
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
