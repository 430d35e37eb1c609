// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../cache/kv_source.hpp"
#include "../simd/line_ranges.hpp"
#include "../simd/product_kernel.hpp"
#include "../simd/tile_lanes.hpp"
#include "tile_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// What a tile sees of a block: a few ranges of keys, all of them held. Hidden keys between them are neither read nor
/// multiplied, which changes no bit, because they would add exactly nothing.
class KeySegments {
 public:
  void add(const simd::KeyRange& keys) { ranges_[size_++] = keys; }
  const simd::KeyRange* begin() const { return ranges_; }
  const simd::KeyRange* end() const { return ranges_ + size_; }
  const simd::KeyRange& back() const { return ranges_[size_ - 1]; }

 private:
  simd::KeyRange ranges_[std::size_t{key_block}];  // a source may have dropped every other key
  int size_ = 0;
};

/// f(k, row) for the keys of the segments, with their places one after another.
template <class F> void for_each_key(const KeySegments& segments, F&& f) {
  Index row = 0;
  for (const simd::KeyRange& keys : segments)
    for (Index k = keys.begin; k < keys.end; ++k) f(k, row++);
}

/// Runs of keys and their values, a block at most.
template <class T> class KeyRuns {
 public:
  Index size() const { return size_; }
  void clear() { size_ = 0; }
  void add(const KvRun<T>& run) {
    key_[size_] = {run.key, run.key_stride, run.count};
    value_[size_++] = {run.value, run.value_stride, run.count};
  }

  Index count(Index i) const { return key_[i].count; }
  const simd::StoredRows<T>& key(Index i) const { return key_[i]; }
  /// Runs [begin, end).
  simd::RowRuns<T> keys(Index begin, Index end) const { return {key_ + begin, end - begin}; }
  simd::RowRuns<T> values(Index begin, Index end) const { return {value_ + begin, end - begin}; }

 private:
  simd::StoredRows<T> key_[std::size_t{key_block}], value_[std::size_t{key_block}];
  Index size_ = 0;
};

/// The keys of one tile of a call whose source is an AnyKv and whose mask a simd::AnyMask: which of them its rows see,
/// and where they lie. The mask is asked `grain` keys at a time.
template <class Call> class TileKeys {
 public:
  using Stored = typename decltype(Call::kv)::Scalar;

  TileKeys(const Call& call, const simd::TileLanes& lanes, Index grain)
      : call_(call), lanes_(lanes), grain_(grain), count_(call.keys(lanes.b)) {}

  Index count() const { return count_; }

  /// The first multiple of `size`, a multiple of which `begin` is, from which on the `size` keys are not all dropped;
  /// count() or more if there is none.
  Index from(Index begin, Index size) const { return call_.kv.held(lanes_.b, begin, count_) / size * size; }

  /// Keys [begin, end) without the blocks at either side that no row sees.
  simd::KeyRange seen(Index begin, Index end) const { return lanes_.visible(call_.mask, begin, end, key_block); }

  /// What of keys [begin, end), a block at most, some row sees.
  KeySegments segments(Index begin, Index end) const {
    KeySegments segments;
    simd::KeyRange all = visible(begin, end);
    if (all.seen == TileVisibility::none) return segments;
    if (all.seen == TileVisibility::partial)
      for (Index gap = all.begin + smallest_gap; gap + smallest_gap < all.end;) {
        if (visible(gap, gap + smallest_gap).seen != TileVisibility::none) {
          gap += smallest_gap;
          continue;
        }
        add_held(segments, {all.begin, gap, TileVisibility::partial});
        all.begin = gap + smallest_gap;
        while (all.begin + smallest_gap < all.end &&
               visible(all.begin, all.begin + smallest_gap).seen == TileVisibility::none)
          all.begin += smallest_gap;
        gap = all.begin + smallest_gap;
      }
    add_held(segments, all);
    return segments;
  }

  /// f(run, k) for the runs of keys [begin, end), all held, k their first counted from begin.
  template <class F> void for_each_run(Index begin, Index end, F&& f) const {
    const Index g = call_.kv_head(lanes_.head);
    for (Index k = begin; k < end;) {
      const KvRun<Stored> run = call_.kv.run(lanes_.b, g, k, end);
      f(run, k - begin);
      k += run.count;
    }
  }

  /// The runs of as many keys from `begin` on as a block has.
  void next(Index begin, KeyRuns<Stored>& runs) const {
    runs.clear();
    const Index g = call_.kv_head(lanes_.head);
    begin = call_.kv.held(lanes_.b, begin, count_);
    for (const Index end = std::min(begin + key_block, count_); begin < end;) {
      runs.add(call_.kv.run(lanes_.b, g, begin, end));
      begin = call_.kv.held(lanes_.b, begin + runs.count(runs.size() - 1), end);
    }
  }
  /// At most `most` keys from `begin` on, as far as they lie together: what comes after a block.
  simd::NextRows<Stored> next(Index begin, Index most = key_block) const {
    begin = call_.kv.held(lanes_.b, begin, count_);
    if (begin >= count_) return {};
    const Index end = std::min(begin + most, count_);
    const KvRun<Stored> run = call_.kv.run(lanes_.b, call_.kv_head(lanes_.head), begin, end);
    return {run.key, run.key_stride, call_.head_dim, run.count};
  }

 private:
  void add_held(KeySegments& segments, const simd::KeyRange& keys) const {
    if (!call_.kv.drops()) return segments.add(keys);
    for (Index begin = call_.kv.held(lanes_.b, keys.begin, keys.end), end = begin; begin < keys.end;
         begin = call_.kv.held(lanes_.b, end, keys.end)) {
      end = call_.kv.held_end(lanes_.b, begin, keys.end);
      segments.add({begin, end, keys.seen});
    }
  }

  simd::KeyRange visible(Index begin, Index end) const { return lanes_.visible(call_.mask, begin, end, grain_); }

  const Call& call_;
  const simd::TileLanes lanes_;
  const Index grain_, count_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
