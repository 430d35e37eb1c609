// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../../core/workspace.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// What the queries of a head keep, in tiles of `lanes`.
template <class A> struct RowMemory {
  A *level, *log2_sum, *delta;  ///< (tiles · lanes)
  /// (tiles · lanes): log2 of the sum without the sink, and minus the log-sum-exp's gradient, if that is computed
  /// apart.
  A *own_log2_sum = nullptr, *own_delta = nullptr;
  double* sink;             ///< (tiles): what each adds to the gradient of the sink
  double* slots = nullptr;  ///< (tiles, padded slots): what each adds to the gradients of the score's slots

  RowMemory(Workspace::Frame& frame, Index tiles, Index lanes, bool log_sum_exp_apart, int padded_slots) {
    const auto n = static_cast<std::size_t>(tiles);
    const auto take = [&] { return frame.take<A>(n * static_cast<std::size_t>(lanes)); };
    level = take();
    log2_sum = take();
    delta = take();
    if (log_sum_exp_apart) {
      own_log2_sum = take();
      own_delta = take();
    }
    sink = frame.take<double>(n);
    if (padded_slots > 0) slots = frame.take<double>(n * static_cast<std::size_t>(padded_slots));
  }
};

/// What one worker needs for the pairs of a tile and `keys` keys.
template <class A> struct PairScratch {
  A* derivative;
  A *own_p = nullptr, *own_ds = nullptr;  ///< of the log-sum-exp's gradient where it is computed apart
  A* dots = nullptr;                      ///< of the score's gradients, where it has any
  A** tables = nullptr;                   ///< the same, of each of its tables

  PairScratch(Workspace::Frame& frame, Index keys, Index lanes, bool log_sum_exp_apart, bool score_gradient,
              int score_tables) {
    const auto take = [&] { return frame.take<A>(static_cast<std::size_t>(keys) * static_cast<std::size_t>(lanes)); };
    derivative = take();
    if (log_sum_exp_apart) {
      own_p = take();
      own_ds = take();
    }
    if (score_gradient) {
      dots = take();
      tables = frame.take<A*>(static_cast<std::size_t>(score_tables));
      for (int j = 0; j < score_tables; ++j) tables[j] = take();
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
