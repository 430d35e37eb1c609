// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "../core/scalar.hpp"
#include "kv_source.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// 64 values of one sequence and head as a matrix unit reads them (KvTiles), which a cache keeps beside their rows;
/// null where it does not.
struct ValueTiles {
  const bfloat16* tiles = nullptr;
  Index stride = 0;         ///< numbers between the tiles of neighbouring d
  bool non_finite = false;  ///< whether one may be NaN or infinite
};

/// A source that outlives this, without its type: a kernel that reads through it is compiled once for all sources of a
/// stored scalar. A run is asked for once per block of keys, so that the calls cost nothing.
template <class T> class AnyKv {
 public:
  using Scalar = T;

  template <class S>
  requires(!std::same_as<S, AnyKv>) explicit AnyKv(const S& source)
      : source_(&source), keys_(keys_of<S>), run_(run_of<S>) {
    if constexpr (DropsKeys<S>) {
      held_ = held_of<S>;
      held_end_ = held_end_of<S>;
    }
    if constexpr (requires { source.value_tiles(Index{}, Index{}, Index{}); }) value_tiles_ = value_tiles_of<S>;
    if constexpr (requires { source.key_tiles(Index{}, Index{}, Index{}); }) key_tiles_ = key_tiles_of<S>;
    if constexpr (requires {
                    { source.room() } -> std::convertible_to<KvRoom>;
                  })
      room_ = source.room();
  }

  Index keys(Index b) const { return keys_(source_, b); }
  KvRun<T> run(Index b, Index g, Index begin, Index end) const { return run_(source_, b, g, begin, end); }

  /// Whether positions may be missing.
  bool drops() const { return held_ != nullptr; }
  /// The first position in [k, end) that is held, else `end`.
  Index held(Index b, Index k, Index end) const {
    if (held_ == nullptr || k >= end) return k;
    const Index at = held_(source_, b, k);
    return at < end ? at : end;
  }
  /// Where the positions end that are held from k on, `end` at most; k is held.
  Index held_end(Index b, Index k, Index end) const {
    return held_end_ == nullptr ? end : held_end_(source_, b, k, end);
  }

  /// No keys where the source does not say.
  const KvRoom& room() const { return room_; }

  /// Whether it keeps values in tiles. Then run() may be asked for rows behind the last position and for dropped ones,
  /// and gives those that its memory has there, whatever they hold; and the keys are filled up with zeros to whole
  /// multiples of 32 numbers.
  bool keeps_values() const { return value_tiles_ != nullptr; }
  /// Those from position k on, a multiple of 64.
  ValueTiles value_tiles(Index b, Index g, Index k) const {
    return value_tiles_ == nullptr ? ValueTiles{} : value_tiles_(source_, b, g, k);
  }

  /// Whether it keeps keys in rows of bfloat16 beside its own, filled up with zeros to whole multiples of 32 numbers.
  bool keeps_keys() const { return key_tiles_ != nullptr; }
  /// 64 from position k on, a multiple of 64; null where it does not.
  const bfloat16* key_tiles(Index b, Index g, Index k) const {
    return key_tiles_ == nullptr ? nullptr : key_tiles_(source_, b, g, k);
  }

 private:
  template <class S> static const S& as(const void* source) { return *static_cast<const S*>(source); }
  template <class S> static Index keys_of(const void* source, Index b) { return as<S>(source).keys(b); }
  template <class S> static KvRun<T> run_of(const void* source, Index b, Index g, Index begin, Index end) {
    KvRun<T> run = as<S>(source).run(b, g, begin, end);
    run.key_stride = step_of_axis(run.count, run.key_stride);
    run.value_stride = step_of_axis(run.count, run.value_stride);
    return run;
  }
  template <class S> static Index held_of(const void* source, Index b, Index k) { return as<S>(source).held(b, k); }
  template <class S> static Index held_end_of(const void* source, Index b, Index k, Index end) {
    return detail::held_end(as<S>(source), b, k, end);
  }

  template <class S> static ValueTiles value_tiles_of(const void* source, Index b, Index g, Index k) {
    return as<S>(source).value_tiles(b, g, k);
  }

  template <class S> static const bfloat16* key_tiles_of(const void* source, Index b, Index g, Index k) {
    return as<S>(source).key_tiles(b, g, k);
  }

  const void* source_;
  KvRoom room_;
  Index (*keys_)(const void*, Index);
  KvRun<T> (*run_)(const void*, Index, Index, Index, Index);
  Index (*held_)(const void*, Index, Index) = nullptr;
  Index (*held_end_)(const void*, Index, Index, Index) = nullptr;
  ValueTiles (*value_tiles_)(const void*, Index, Index, Index) = nullptr;
  const bfloat16* (*key_tiles_)(const void*, Index, Index, Index) = nullptr;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
