// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../../core/stored_row.hpp"
#include "../simd/line_ranges.hpp"
#include "tile_keys.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// Whose rows kernels of few rows ask memory for.
enum class Asking {
  of_other,  ///< scores for the values of their keys, and values for the keys of the next block
  of_own,    ///< each for rows of its own that come later
};

/// What they ask for in advance, in the order of memory, so that it is on its way while they compute.
///
/// Where requests wait for each other, those of a whole block are under way before it is needed. Where the processor
/// forgets what is too much at a time, values, which are added faster than memory answers, would lose most of the next
/// keys: there the loads of each kind keep its own requests at the rate of memory.
template <class Call> class TileRequests {
 public:
  using Stored = typename TileKeys<Call>::Stored;

  /// Keys from one whose value is read to the one whose value is asked for: measured, for one row and for several,
  /// which go over a block's values more than once.
  static constexpr Index values_ahead = key_block + key_block / 2;

  TileRequests(const Call& call, Asking asking)
      : head_dim_(call.head_dim), value_dim_(call.value_dim), asking_(asking) {}

  /// Keys from one that is read to the one that is asked for: a third of a first-level cache, and no fewer than scores
  /// read at once.
  static Index keys_ahead(Index head_dim) {
    constexpr Index bytes = 16 << 10, at_once = 32;
    return std::max(at_once, bytes / (std::max(row_elements<Stored>(head_dim), Index{1}) * Index{sizeof(Stored)}));
  }

  /// For scores of keys from `begin` on, whose values lie in `values`; valid until the next call.
  simd::LineRanges in_scores(const TileKeys<Call>& keys, Index begin, const simd::RowRuns<Stored>& values) {
    if (asking_ == Asking::of_other) return simd::line_ranges(values, value_dim_, lines_);
    keys.next(later(keys, begin, keys_ahead(head_dim_)), runs_);
    return near(simd::line_ranges(runs_.keys(0, runs_.size()), head_dim_, lines_));
  }

  /// For values of keys from `begin` to before `end`; valid until the next call.
  simd::LineRanges in_values(const TileKeys<Call>& keys, Index begin, Index end) {
    const bool own = asking_ == Asking::of_own;
    keys.next(own ? later(keys, begin, values_ahead) : end, runs_);
    if (own) return near(simd::line_ranges(runs_.values(0, runs_.size()), value_dim_, lines_));
    return simd::line_ranges(runs_.keys(0, runs_.size()), head_dim_, lines_);
  }

 private:
  /// The key so many after one, or where keys end.
  static Index later(const TileKeys<Call>& keys, Index begin, Index by) {
    return begin < keys.count() - by ? begin + by : keys.count();
  }
  static simd::LineRanges near(simd::LineRanges lines) {
    lines.near = true;
    return lines;
  }

  const Index head_dim_, value_dim_;
  const Asking asking_;
  KeyRuns<Stored> runs_;
  simd::LineRange lines_[std::size_t{key_block}];
};

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
