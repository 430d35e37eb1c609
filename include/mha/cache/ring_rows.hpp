// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../config.hpp"
#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Where a block of `rows` rows keeps the positions of a sequence: the first ones in rows of their own, every other in
/// row first + (p − first) mod (rows − first), over the one that was there. With first = rows nothing is written over.
struct RingRows {
  Index rows, first;

  /// The least that keep as much, in which rows and positions agree modulo n.
  constexpr RingRows in_multiples(Index n) const {
    const Index fixed = blocks_of(first, n) * n;
    return {fixed + blocks_of(size(), n) * n, fixed};
  }

  MHA_HOST_DEVICE constexpr bool turns() const { return first < rows; }
  /// Positions that are kept behind the first ones.
  MHA_HOST_DEVICE constexpr Index size() const { return rows - first; }

  MHA_HOST_DEVICE constexpr Index row(Index position) const {
    return position < first ? position : first + (position - first) % size();
  }
  /// Positions from this one on that are in rows one after another, `most` at most.
  MHA_HOST_DEVICE constexpr Index together(Index position, Index most) const {
    const Index room = (position < first ? first : rows) - row(position);
    return room < most ? room : most;
  }

  /// Where the positions that are kept go on behind the first ones, once `written` were written; 0 if all are there.
  MHA_HOST_DEVICE constexpr Index oldest(Index written) const {
    return turns() && written > rows ? written - size() : 0;
  }
  /// The first position from k on that is there.
  MHA_HOST_DEVICE constexpr Index held(Index k, Index oldest) const { return k < first || k >= oldest ? k : oldest; }
  /// Where the positions end that are there from k on, of a sequence of this length.
  MHA_HOST_DEVICE constexpr Index held_end(Index k, Index oldest, Index length) const {
    return k < first && oldest > first ? first : length;
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
