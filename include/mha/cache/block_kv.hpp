// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../policy/mask.hpp"
#include "kv_source.hpp"
#include "ring_rows.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// What a mask says of tiles to a host that may not read its data.
template <class M> struct TilesOnHost {
  const M* mask;
  bool readable;

  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    return readable ? mha::tile(*mask, b, h, q_begin, q_end, k_begin, k_end) : TileVisibility::partial;
  }
};

template <class M> TilesOnHost<M> tiles_on_host(const M& mask);
template <class A, class B> auto tiles_on_host(const And<A, B>& mask);
template <class A, class B> auto tiles_on_host(const Or<A, B>& mask);

template <class M> TilesOnHost<M> tiles_on_host(const M& mask) {
  bool readable = true;
  const auto look = [&](const auto& data) {
    if constexpr (requires { data.memory; }) readable = readable && (data.memory == Memory::host || data.size == 0);
    return data;
  };
  if constexpr (requires { mask.with_data(look); }) static_cast<void>(mask.with_data(look));
  return {&mask, readable};
}
template <class A, class B> auto tiles_on_host(const And<A, B>& mask) {
  return And<decltype(tiles_on_host(mask.a)), decltype(tiles_on_host(mask.b))>{tiles_on_host(mask.a),
                                                                               tiles_on_host(mask.b)};
}
template <class A, class B> auto tiles_on_host(const Or<A, B>& mask) {
  return Or<decltype(tiles_on_host(mask.a)), decltype(tiles_on_host(mask.b))>{tiles_on_host(mask.a),
                                                                              tiles_on_host(mask.b)};
}

/// Checks that a mask, prepared for the call, hides positions [first, oldest[b]) of each sequence, where that is not 0.
template <class M>
void require_dropped_hidden(const char* call, const M& mask, const CallShape& shape, Index first, const Index* oldest) {
  const auto asked = tiles_on_host(mask);
  for (Index b = 0; b < shape.batch; ++b) {
    const Index begin = shape.origin[b], end = shape.queries_end(b);
    if (oldest[b] == 0 || begin == end) continue;
    for (Index h = 0; h < shape.heads; ++h)
      require(asked.tile(b, h, begin, end, first, oldest[b]) == TileVisibility::none, call,
              ": the mask may show positions ", first, " to ", oldest[b] - 1,
              ", which the Ring has dropped, to the queries from position ", begin,
              " on: use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring "
              "with a larger left");
  }
}

/// Keys and values of some of a cache's sequences, each of which has a block of rows: sequence b is in blocks[b].
///
/// Position p is in row p, or, if the blocks turn, where RingRows says of `fixed` rows that stay; then positions
/// [first, oldest[b]) are gone, if oldest[b] is not 0. A call whose mask may show one of these is refused, so that runs
/// may go on over some that are in memory still.
/// Shapes    key (blocks, rows, Hkv, D)  value (blocks, rows, Hkv, Dv)  blocks, lengths, oldest (B)
template <class T, bool turns> struct BlockKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  Borrowed<Index> blocks, lengths;
  Borrowed<Index> oldest{};
  Index first = 0, fixed = first;

  MHA_HOST_DEVICE constexpr Index batch() const { return lengths.size; }
  MHA_HOST_DEVICE constexpr Index heads() const { return key.extent[2]; }
  MHA_HOST_DEVICE constexpr Index dim() const { return key.extent[3]; }
  MHA_HOST_DEVICE constexpr Index value_dim() const { return value.extent[3]; }
  MHA_HOST_DEVICE constexpr Index keys(Index b) const { return lengths[b]; }

  MHA_HOST_DEVICE constexpr Index held(Index b, Index k) const requires(turns) { return ring().held(k, oldest[b]); }
  MHA_HOST_DEVICE constexpr Index held_end(Index b, Index k) const requires(turns) {
    return ring().held_end(k, oldest[b], lengths[b]);
  }

  MHA_HOST_DEVICE constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    const Index row = turns ? rows().row(begin) : begin, most = end - begin, left = key.extent[1] - begin;
    const Index count = turns ? rows().together(begin, most) : left < most ? left : most;
    return {key.pointer(blocks[b], row, g, 0), value.pointer(blocks[b], row, g, 0), key.stride[1], value.stride[1],
            count};
  }

  constexpr InBlock in_block(Index b, Index k) const { return {blocks[b], k}; }

  constexpr KvRoom room() const { return {key.extent[1], std::int64_t{batch()} * key.extent[1]}; }

  template <class Move> constexpr BlockKv with_data(Move&& f) const {
    return {key, value, f(blocks), f(lengths), f(oldest), first, fixed};
  }

  /// Checks that a mask, prepared for the call, hides what was written over.
  template <class M>
  void require_hidden(const char* call, const M& mask, const CallShape& shape) const requires(turns) {
    require_dropped_hidden(call, mask, shape, first, oldest.data);
  }

 private:
  MHA_HOST_DEVICE constexpr RingRows ring() const { return {key.extent[1], first}; }  ///< `first` counts
  MHA_HOST_DEVICE constexpr RingRows rows() const { return {key.extent[1], fixed}; }  ///< where
};

}  // namespace mha::inline MHA_NAMESPACE::detail
