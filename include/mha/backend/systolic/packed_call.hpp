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
/// tiles and blocks that it has dropped take no memory.
class PackedCall {
 public:
  /// Without memory.
  template <class T, class Stored>
  PackedCall(const simd::AnyCall<T, Stored>& call, const HeldBlocks& held, bool with_values, bool one_at_a_time)
      : held_(held),
        kv_heads_(call.kv_heads),
        head_dim_(call.head_dim),
        value_dim_(with_values ? call.value_dim : 0),
        one_at_a_time_(one_at_a_time) {
    for (Index b = 0; with_values && b < call.shape.batch; ++b)
      packs_values_ = packs_values_ || call.kv.value_tiles(b, 0).tiles == nullptr;
    key_blocks_ = (one_at_a_time ? held.most() : held.all() * kv_heads_) * in_block;
    stay_in_place_ = KeysInPlace<Stored>::possible(call.kv, head_dim_);
    if (stay_in_place_) {
      key_blocks_ = 0;
      for_each_head(call.shape.batch, [&](Index b, Index g) {
        std::int64_t n = 0;
        for_each_key_block(call, b, g, [&](std::ptrdiff_t, const KeyRows& at) { n += at.first == nullptr ? 1 : 0; });
        stay_in_place_ = stay_in_place_ && KeysInPlace<Stored>(call.kv, b, g, call.keys(b), head_dim_).stays();
        key_blocks_ = one_at_a_time ? std::max(key_blocks_, n) : key_blocks_ + n;
      });
    }
  }

  /// Memory from `frame`, nothing packed yet.
  template <class T, class Stored> void take(const simd::AnyCall<T, Stored>& call, Workspace::Frame& frame) {
    const Sizes sizes = sizes_of(key_blocks_, one_at_a_time_ ? held_.most() : held_.all() * kv_heads_);
    keys_ = next_ = frame.take<bfloat16>(sizes.keys);
    values_ = frame.take<bfloat16>(sizes.values);
    key_rows_ = frame.take<KeyRows>(sizes.places);
    non_finite_ = frame.take<std::uint8_t>(sizes.places);
    // Of 64 keys that are all dropped nothing but a prefetch asks.
    if (call.kv.drops()) std::fill_n(key_rows_, sizes.places, KeyRows{nullptr, 0});
    if (!one_at_a_time_) for_each_head(call.shape.batch, [&](Index b, Index g) { place_keys(call, b, g); });
  }

  /// Bytes of what later calls may take as the source grows to its room.
  std::size_t room(Index batch, bool one_at_a_time) const {
    const auto heads = [&](bool one) { return one ? 1 : std::int64_t{batch} * kv_heads_; };
    const std::int64_t blocks = one_at_a_time ? held_.room() : held_.room_of_all() * kv_heads_;
    // Of a head that is read in place, a few are packed: those at either end, and where its memory turns.
    const Sizes sizes = sizes_of((stay_in_place_ ? heads(one_at_a_time) : blocks) * in_block, blocks);
    return (sizes.keys + sizes.values) * sizeof(bfloat16) + sizes.places * (sizeof(KeyRows) + 1) + 4 * alignment;
  }

  /// One head at a time: that of sequence b and key/value head g is packed next.
  template <class T, class Stored> void turn_to(const simd::AnyCall<T, Stored>& call, Index b, Index g) {
    next_ = keys_;
    place_keys(call, b, g);
  }

  /// With the values of `kept`, if they are.
  KvTiles at(Index b, Index g, const ValueTiles& kept) const {
    const PackedValues packed = values_at(b, g, 0);
    return {kept.tiles != nullptr ? kept.tiles : packed.values, key_rows_ + block(b, g, 0) * in_block,
            kept.tiles != nullptr ? kept.non_finite : packed.non_finite, head_dim_, value_dim_};
  }
  /// Where the j-th 64 keys of the i-th block are to be packed; null where they are read at their source.
  bfloat16* keys_at(Index b, Index g, Index i, Index j) const {
    const bfloat16* const rows = key_rows_[block(b, g, i) * in_block + j].first;
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(rows) - reinterpret_cast<std::uintptr_t>(keys_);
    return at < static_cast<std::uintptr_t>(key_blocks_ * key_elements()) * sizeof(bfloat16)
               ? keys_ + at / sizeof(bfloat16)
               : nullptr;
  }
  /// Where values that are not kept are packed.
  PackedValues values_at(Index b, Index g, Index i) const {
    return {values_ + (packs_values_ ? block(b, g, i) * value_elements() : 0), non_finite_ + block(b, g, i) * in_block};
  }

 private:
  static constexpr std::int64_t in_block = value_block / key_block;

  struct Sizes {
    std::size_t keys, values, places;
  };
  Sizes sizes_of(std::int64_t of_keys, std::int64_t blocks) const {
    return {static_cast<std::size_t>(of_keys * key_elements()),
            static_cast<std::size_t>(packs_values_ ? blocks * value_elements() : 0),
            static_cast<std::size_t>(blocks * in_block)};
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
  /// f(place, where they are) for every 64 keys that are not all dropped.
  template <class T, class Stored, class F>
  void for_each_key_block(const simd::AnyCall<T, Stored>& call, Index b, Index g, F&& f) const {
    const Index n = call.keys(b);
    KeysInPlace<Stored> in_place(call.kv, b, g, n, head_dim_);
    for (Index i = 0; i < held_.count(b); ++i)
      for (Index j = 0, k = held_.key(b, i); j < in_block && k < n; ++j, k += key_block)
        if (const Index end = std::min(n, k + key_block); call.kv.held(b, k, end) < end)
          f(block(b, g, i) * in_block + j, in_place.at(k));
  }
  template <class T, class Stored> void place_keys(const simd::AnyCall<T, Stored>& call, Index b, Index g) {
    for_each_key_block(call, b, g, [&](std::ptrdiff_t place, const KeyRows& rows) {
      key_rows_[place] = rows;
      if (rows.first != nullptr) return;
      key_rows_[place] = {next_, round_up(head_dim_, tile_depth)};
      next_ += key_elements();
    });
  }

  const HeldBlocks& held_;
  Index kv_heads_, head_dim_, value_dim_;
  bool one_at_a_time_, packs_values_ = false, stay_in_place_ = false;
  std::int64_t key_blocks_;  ///< of 64 keys, that are packed at a time
  bfloat16 *keys_ = nullptr, *values_ = nullptr, *next_ = nullptr;
  KeyRows* key_rows_ = nullptr;  ///< (blocks, 4)
  std::uint8_t* non_finite_ = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
