// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "kv_source.hpp"
#include "ring_rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Keys and values of which only the first ones and the latest are kept, in memory of a fixed size: position p below
/// `first` is in row p, every other in row first + (p − first) mod (rows − first), over the one that was there.
///
/// A dropped position is hidden from every query. A mask that shows the last l + 1 keys and the first f, such as
/// Causal{} && (SlidingWindow{.left = l} || FirstKeys{.count = f}), loses nothing by a step of n queries if
/// rows ≥ f + l + n.
/// Shapes    key (B, rows, Hkv, D)  value (B, rows, Hkv, Dv), both contiguous along the last axis  lengths (B), on the
///           host
/// Errors    ShapeError if the sizes do not agree, or no row is left for the ring, as of a call that is given it
template <class T> struct RingKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  Borrowed<Index> lengths;  ///< positions that have been given, dropped ones among them
  Index first = 0;          ///< positions that are never dropped

  MHA_HOST_DEVICE constexpr Index batch() const { return lengths.size; }
  MHA_HOST_DEVICE constexpr Index heads() const { return key.extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const { return key.extent[3]; }
  MHA_HOST_DEVICE constexpr Index value_dim() const { return value.extent[3]; }
  MHA_HOST_DEVICE constexpr Index keys(Index b) const { return lengths[b]; }

  /// The first position of the ring that is still there.
  MHA_HOST_DEVICE constexpr Index oldest(Index b) const {
    const Index kept = ring().oldest(lengths[b]);
    return kept > first ? kept : first;
  }
  MHA_HOST_DEVICE constexpr Index held(Index b, Index k) const { return ring().held(k, ring().oldest(lengths[b])); }
  MHA_HOST_DEVICE constexpr Index held_end(Index b, Index k) const {
    return ring().held_end(k, ring().oldest(lengths[b]), lengths[b]);
  }

  MHA_HOST_DEVICE constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const Index row = ring().row(begin);
    return {key.pointer(b, row, g, 0), value.pointer(b, row, g, 0), key.stride[1], value.stride[1],
            ring().together(begin, end - begin)};
  }

  constexpr KvRoom room() const { return {key.extent[1], std::int64_t{batch()} * key.extent[1]}; }

  void check(const char* call) const {
    detail::require_kv_arrays(call, "RingKv", key, value);
    detail::require(first >= 0 && first < key.extent[1], call, ": RingKv keeps the first ", first, " positions in ",
                    key.extent[1], " rows, which leaves none for the ring");
    detail::require(lengths.size == key.extent[0], call, ": RingKv has ", lengths.size, " lengths for ", key.extent[0],
                    " sequences");
    detail::require_key_lengths(call, "RingKv", lengths, [](Index) { return detail::longest_axis; });
  }
  template <class F> constexpr RingKv with_data(F&& f) const { return {key, value, f(lengths), first}; }

 private:
  MHA_HOST_DEVICE constexpr detail::RingRows ring() const { return {key.extent[1], first}; }
};
template <class K, class V>
RingKv(TensorView<K, 4>, TensorView<V, 4>, Borrowed<Index>, Index = 0) -> RingKv<std::remove_const_t<K>>;

}  // namespace mha::inline MHA_NAMESPACE
