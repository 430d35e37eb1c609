// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../../cache/kv_source.hpp"
#include "tiles.hpp"

namespace mha::inline v0::detail::systolic {

/// Keys over which one step of the online softmax goes. Steps start at absolute multiples, so that a row's bits do not
/// depend on which other rows or keys are in the call.
inline constexpr Index key_block = 64;
/// Keys whose values lie together, and whose weights are multiplied in one go.
inline constexpr Index value_block = 256;

/// Keys and values of one sequence and head as A tiles, in bfloat16 and in absolute order of the keys: what is packed
/// stays where it is when keys are appended.
///
/// Shapes    keys   (Lk / 16, D / 32, 16 keys, 32)                  zeros beyond D and Lk
///           values (Lk / 256, Dv / 16, 8, 16 of Dv, 32 keys)       the transposed; zeros beyond Dv and Lk
///           non_finite (Lk / 64): whether a value of that key block is NaN or infinite; all sizes rounded up
struct KvTiles {
  bfloat16 *keys, *values;
  std::uint8_t* non_finite;
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

  /// A tiles of key k, a multiple of 16: tile t further at + t·key_tile_stride().
  bfloat16* key_tiles(Index k) const { return keys + k / tile_side * key_tile_stride(); }
  constexpr std::ptrdiff_t key_tile_stride() const { return std::ptrdiff_t{depth_steps()} * tile_size; }
  /// A tiles of the values from key k on, a multiple of 32, within its block.
  bfloat16* value_tiles_at(Index k) const {
    return values + k / value_block * value_tiles() * value_tile_stride + k % value_block / tile_depth * tile_size;
  }
};

/// Scratch rows for pack_keys_values(), in numbers.
constexpr std::size_t pack_scratch(Index head_dim, Index value_dim) {
  return static_cast<std::size_t>(tile_depth) *
         static_cast<std::size_t>(std::max(round_up(head_dim, tile_depth), round_up(value_dim, tile_side)));
}

/// f(row of key k, row of value k, k) for keys [begin, end) of a source.
template <class Source, class F>
void for_each_key(const Source& source, Index b, Index g, Index begin, Index end, F&& f) {
  for (Index k = begin; k < end;) {
    const auto run = source.run(b, g, k, end);
    for (Index i = 0; i < run.count; ++i) f(run.key + i * run.key_stride, run.value + i * run.value_stride, k + i);
    k += run.count;
  }
}

/// Packs keys [begin, min(begin + 64, n)) of a source: `begin` is a multiple of 64.
template <class Source>
void pack_keys(const Source& source, Index b, Index g, Index begin, Index n, IsaLevel level, const KvTiles& to,
               bfloat16* scratch) {
  const Index width = round_up(to.head_dim, tile_depth), steps = to.depth_steps();
  const Index end = std::min(begin + key_block, n);
  std::fill_n(to.key_tiles(begin), std::ptrdiff_t{key_block} * width, bfloat16{});
  for_each_key(source, b, g, begin, end, [&](const auto* key, const auto*, Index k) {
    round_row(level, key, 1, to.head_dim, width, scratch);
    bfloat16* const rows = to.key_tiles(k / tile_side * tile_side) + k % tile_side * tile_depth;
    for (Index s = 0; s < steps; ++s) std::copy_n(scratch + s * tile_depth, tile_depth, rows + s * tile_size);
  });
}

/// The same for their values.
template <class Source>
void pack_values(const Source& source, Index b, Index g, Index begin, Index n, IsaLevel level, const KvTiles& to,
                 bfloat16* scratch) {
  const Index width = round_up(to.value_dim, tile_side);
  std::uint32_t largest = 0;
  for (Index first = begin; first < begin + key_block; first += tile_depth) {
    const Index end = std::clamp(n, first, first + tile_depth);
    for_each_key(source, b, g, first, end, [&](const auto*, const auto* value, Index k) {
      round_row(level, value, 1, to.value_dim, width, scratch + std::ptrdiff_t{k - first} * width);
    });
    std::fill(scratch + std::ptrdiff_t{end - first} * width, scratch + std::ptrdiff_t{tile_depth} * width, bfloat16{});
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{tile_depth} * width; ++i)
      largest = std::max<std::uint32_t>(largest, scratch[i].bits & 0x7fffu);
    simd::with_isa(level, [&](auto isa) {
      decltype(isa)::template run<PackTransposedBody, const bfloat16*, std::ptrdiff_t, Index, bfloat16*,
                                  std::ptrdiff_t>(scratch, width, width / tile_side, to.value_tiles_at(first),
                                                  KvTiles::value_tile_stride);
      return 0;
    });
  }
  to.non_finite[begin / key_block] = largest >= 0x7f80u;
}

}  // namespace mha::inline v0::detail::systolic
