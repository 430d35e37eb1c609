// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../simd/tile_policies.hpp"
#include "held_blocks.hpp"
#include "kv_tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// The keys and values of a call, packed once per sequence and key/value head: all of them, or one head at a time in
/// the same place, which a near cache then keeps. Keys that are read where they are, values that the source keeps in
/// tiles and blocks that it has dropped take no memory; a block of 256 has memory if the source lacks 64 of its values.
class PackedCall {
 public:
  /// Without memory.
  template <class T, class Stored>
  PackedCall(const simd::AnyCall<T, Stored>& call, const HeldBlocks& held, bool with_values, bool one_at_a_time)
      : held_(held),
        kv_heads_(call.kv_heads),
        head_dim_(call.head_dim),
        value_dim_(with_values ? call.value_dim : 0),
        one_at_a_time_(one_at_a_time),
        keeps_values_(with_values && call.kv.keeps_values()),
        value_blocks_(one_at_a_time ? held.most() : held.all() * kv_heads_),
        key_blocks_(value_blocks_ * in_block) {
    stay_in_place_ = KeysInPlace<Stored>::possible(call.kv, head_dim_);
    const auto count = [&](std::int64_t& all, const auto& of_head) {
      all = 0;
      for_each_head(call.shape.batch, [&](Index b, Index g) {
        const std::int64_t n = of_head(b, g);
        all = one_at_a_time ? std::max(all, n) : all + n;
      });
    };
    if (stay_in_place_)
      count(key_blocks_, [&](Index b, Index g) {
        std::int64_t n = 0;
        for_each_keys(call, b, g, [&](std::ptrdiff_t, const KeyRows& at) { n += at.exist() ? 0 : 1; });
        stay_in_place_ = stay_in_place_ && KeysInPlace<Stored>(call.kv, b, g, call.keys(b), head_dim_).stays();
        return n;
      });
    if (keeps_values_)
      count(value_blocks_, [&](Index b, Index g) {
        std::ptrdiff_t n = 0, last = -1;
        for_each_64(call, b, g, [&](std::ptrdiff_t place, Index k) {
          if (place / in_block == last || call.kv.value_tiles(b, g, k).tiles != nullptr) return;
          last = place / in_block;
          ++n;
        });
        return n;
      });
  }

  /// Memory from `frame`, nothing packed yet.
  template <class T, class Stored> void take(const simd::AnyCall<T, Stored>& call, Workspace::Frame& frame) {
    const Sizes sizes = sizes_of(key_blocks_, value_blocks_, one_at_a_time_ ? held_.most() : held_.all() * kv_heads_);
    keys_ = next_keys_ = frame.take<bfloat16>(sizes.keys);
    values_ = next_values_ = frame.take<bfloat16>(sizes.values);
    key_rows_ = frame.take<KeyRows>(sizes.places);
    value_tiles_ = frame.take<ValueTiles>(sizes.places);
    // Of 64 keys that are all dropped nothing but a prefetch asks.
    if (call.kv.drops()) std::fill_n(key_rows_, sizes.places, KeyRows{});
    if (call.kv.drops() || value_dim_ == 0) std::fill_n(value_tiles_, sizes.places, ValueTiles{});
    if (!one_at_a_time_) for_each_head(call.shape.batch, [&](Index b, Index g) { place(call, b, g); });
  }

  /// Bytes of what later calls may take as the source grows to its room.
  std::size_t room(Index batch, bool one_at_a_time) const {
    const auto heads = [&](bool one) { return one ? 1 : std::int64_t{batch} * kv_heads_; };
    const std::int64_t blocks = one_at_a_time ? held_.room() : held_.room_of_all() * kv_heads_;
    // Of a head that is read in place, a few may be packed: those at either end, and where its memory turns.
    const Sizes sizes = sizes_of((stay_in_place_ ? heads(one_at_a_time) : blocks) * in_block,
                                 keeps_values_ ? heads(one_at_a_time) : blocks, blocks);
    return (sizes.keys + sizes.values) * sizeof(bfloat16) + sizes.places * (sizeof(KeyRows) + sizeof(ValueTiles)) +
           4 * alignment;
  }

  /// One head at a time: that of sequence b and key/value head g is packed next.
  template <class T, class Stored> void turn_to(const simd::AnyCall<T, Stored>& call, Index b, Index g) {
    next_keys_ = keys_;
    next_values_ = values_;
    place(call, b, g);
  }

  KvTiles at(Index b, Index g) const {
    const std::ptrdiff_t first = block(b, g, 0) * in_block;
    return {value_tiles_ + first, key_rows_ + first, head_dim_, value_dim_};
  }
  /// Where the j-th 64 keys of the i-th block are to be packed; null where they are read at their source.
  bfloat16* keys_at(Index b, Index g, Index i, Index j) const {
    return within(keys_, key_blocks_ * key_elements(), key_rows_[block(b, g, i) * in_block + j].tile[0]);
  }
  /// And their values; null tiles where the source keeps them.
  PackedValues values_at(Index b, Index g, Index i, Index j) const {
    ValueTiles& at = value_tiles_[block(b, g, i) * in_block + j];
    return {within(values_, value_blocks_ * value_elements(), at.tiles), at.stride, &at.non_finite};
  }

 private:
  static constexpr std::int64_t in_block = value_block / key_block;

  struct Sizes {
    std::size_t keys, values, places;
  };
  Sizes sizes_of(std::int64_t of_keys, std::int64_t of_values, std::int64_t blocks) const {
    return {static_cast<std::size_t>(of_keys * key_elements()), static_cast<std::size_t>(of_values * value_elements()),
            static_cast<std::size_t>(blocks * in_block)};
  }
  /// `at`, to be written, if it is in memory of so many numbers; else null.
  static bfloat16* within(bfloat16* memory, std::int64_t size, const bfloat16* at) {
    const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(memory);
    return offset < static_cast<std::uintptr_t>(size) * sizeof(bfloat16) ? memory + offset / sizeof(bfloat16) : nullptr;
  }
  std::int64_t key_elements() const { return std::int64_t{key_block} * round_up(head_dim_, tile_depth); }
  std::int64_t value_elements() const { return std::int64_t{value_block} * round_up(value_dim_, tile_side); }

  /// Where the i-th block of a head is among all.
  std::ptrdiff_t block(Index b, Index g, Index i) const {
    if (one_at_a_time_) return i;
    return static_cast<std::ptrdiff_t>(held_.before(b) * kv_heads_ + std::int64_t{g} * held_.count(b) + i);
  }

  template <class F> void for_each_head(Index batch, F&& f) const {
    for (Index b = 0; b < batch; ++b)
      for (Index g = 0; g < kv_heads_; ++g) f(b, g);
  }
  /// f(place, first key) for every 64 keys that are not all dropped.
  template <class T, class Stored, class F>
  void for_each_64(const simd::AnyCall<T, Stored>& call, Index b, Index g, F&& f) const {
    const Index n = call.keys(b);
    for (Index i = 0; i < held_.count(b); ++i)
      for (Index j = 0, k = held_.key(b, i); j < in_block && k < n; ++j, k += key_block)
        if (const Index end = std::min(n, k + key_block); call.kv.held(b, k, end) < end)
          f(block(b, g, i) * in_block + j, k);
  }
  /// f(place, where they are) for their keys.
  template <class T, class Stored, class F>
  void for_each_keys(const simd::AnyCall<T, Stored>& call, Index b, Index g, F&& f) const {
    KeysInPlace<Stored> in_place(call.kv, b, g, call.keys(b), head_dim_);
    for_each_64(call, b, g, [&](std::ptrdiff_t place, Index k) { f(place, in_place.at(k)); });
  }
  template <class T, class Stored> void place(const simd::AnyCall<T, Stored>& call, Index b, Index g) {
    for_each_keys(call, b, g, [&](std::ptrdiff_t place, const KeyRows& rows) {
      key_rows_[place] = rows;
      if (rows.exist()) return;
      key_rows_[place] = {next_keys_, round_up(head_dim_, tile_depth)};
      next_keys_ += key_elements();
    });
    if (value_dim_ > 0) place_values(call, b, g);
  }
  template <class T, class Stored> void place_values(const simd::AnyCall<T, Stored>& call, Index b, Index g) {
    std::ptrdiff_t last = -1;
    const bfloat16* own = nullptr;
    for_each_64(call, b, g, [&](std::ptrdiff_t place, Index k) {
      ValueTiles& at = value_tiles_[place];
      at = call.kv.value_tiles(b, g, k);
      if (at.tiles != nullptr) return;
      if (place / in_block != last) {
        last = place / in_block;
        own = next_values_;
        next_values_ += value_elements();
      }
      at = {own + KvTiles::value_offset(k % value_block), KvTiles::value_stride(value_block), false};
    });
  }

  const HeldBlocks& held_;
  Index kv_heads_, head_dim_, value_dim_;
  bool one_at_a_time_, keeps_values_, stay_in_place_ = false;
  std::int64_t value_blocks_, key_blocks_;  ///< of 256 and of 64 keys, that are packed at a time
  bfloat16 *keys_ = nullptr, *values_ = nullptr, *next_keys_ = nullptr, *next_values_ = nullptr;
  KeyRows* key_rows_ = nullptr;        ///< (blocks, 4)
  ValueTiles* value_tiles_ = nullptr;  ///< (blocks, 4)
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
