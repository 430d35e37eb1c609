// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv_source.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Keys and values of some of a cache's sequences, each of which has a block of rows: sequence b is in blocks[b].
///
/// Position p is in row p, or, if the blocks turn, from `first` on in row first + (p − first) mod (rows − first); of
/// these, the positions before oldest[b] were written over.
/// Shapes    key (blocks, rows, Hkv, D)  value (blocks, rows, Hkv, Dv)  blocks, lengths, oldest (B), on the host
template <class T, bool turns> struct BlockKv {
  using Scalar = T;
  TensorView<const T, 4> key, value;
  Borrowed<Index> blocks, lengths;
  Borrowed<Index> oldest{};
  Index first = 0;

  constexpr Index batch() const { return lengths.size; }
  constexpr Index heads() const { return key.extent[2]; }
  constexpr Index dim() const { return key.extent[3]; }
  constexpr Index value_dim() const { return value.extent[3]; }
  constexpr Index keys(Index b) const { return lengths[b]; }

  constexpr Index held(Index b, Index k) const requires(turns) { return k < first || k >= oldest[b] ? k : oldest[b]; }
  constexpr Index held_end(Index b, Index k) const requires(turns) {
    return k < first && oldest[b] > first ? first : lengths[b];
  }

  constexpr KvRun<T> run(Index b, Index g, Index begin, Index end) const {
    Index row = begin, room = end - begin;
    if constexpr (turns) {
      const Index ring = key.extent[1] - first, at = begin < first ? 0 : (begin - first) % ring;
      row = begin < first ? begin : first + at;
      room = begin < first ? first - begin : ring - at;
    }
    return {key.pointer(blocks[b], row, g, 0), value.pointer(blocks[b], row, g, 0), key.stride[1], value.stride[1],
            room < end - begin ? room : end - begin};
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
