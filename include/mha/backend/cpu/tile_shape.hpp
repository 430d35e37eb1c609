// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../config.hpp"
#include "../simd/key_chunks.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// Keys per step of the online softmax. Steps start at absolute multiples of it, so that a row's bits do not depend on
/// which other rows or keys are in the call.
inline constexpr Index key_block = 128;

using simd::key_chunk;
static_assert(key_chunk % key_block == 0, "a chunk ends with a block");

/// Hidden keys in the middle of a block that are worth leaving out.
inline constexpr Index smallest_gap = 32;

/// The rows of one tile, lane by lane: `heads` query heads of one key/value head, from h on, with queries
/// [first, first + count) of sequence b each.
struct TileRows {
  Index b, h, heads, first, count;
  Index lanes() const { return heads * count; }
};

/// f(h, i, lane) for every row: query i of head h.
template <class F> void for_each_row(const TileRows& rows, F&& f) {
  for (Index lane = 0; lane < rows.lanes(); ++lane) f(rows.h + lane / rows.count, rows.first + lane % rows.count, lane);
}

/// f(h, i, lane, width) for every register of queries of one head, f(h, i, lane, 1) for what is left.
template <class F> void for_each_register(const TileRows& rows, Index width, F&& f) {
  for (Index head = 0; head < rows.heads; ++head) {
    Index i = 0;
    for (; i + width <= rows.count; i += width) f(rows.h + head, rows.first + i, head * rows.count + i, width);
    for (; i < rows.count; ++i) f(rows.h + head, rows.first + i, head * rows.count + i, Index{1});
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
