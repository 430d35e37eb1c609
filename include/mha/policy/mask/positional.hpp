// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../../core/check.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Every key is visible.
struct Full {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Full";
  MHA_HOST_DEVICE constexpr bool operator()(Index, Index, Index, Index) const { return true; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index, Index, Index, Index, Index, Index) const {
    return TileVisibility::full;
  }
};

/// A query sees its own position and those before it: k <= q.
///
/// Positions are absolute, so with Lq < Lk the last query meets the last key (bottom-right alignment).
struct Causal {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Causal";
  MHA_HOST_DEVICE constexpr bool operator()(Index, Index, Index q, Index k) const { return k <= q; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index, Index, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    if (k_begin >= q_end) return TileVisibility::none;
    return k_end - 1 <= q_begin ? TileVisibility::full : TileVisibility::partial;
  }
};

/// Causal with the first query at the first key, whatever the lengths: PyTorch's is_causal.
struct CausalTopLeft {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "CausalTopLeft";
  Origins origin{};  ///< set by prepared()

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index, Index q, Index k) const { return k <= q - origin[b]; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    return Causal{}.tile(b, h, q_begin - origin[b], q_end - origin[b], k_begin, k_end);
  }
  constexpr CausalTopLeft prepared(const CallShape& s) const { return {s.origin}; }
  template <class F> constexpr CausalTopLeft with_data(F&& f) const { return {f(origin)}; }
};

/// The inclusive reach [q − left, q + right]: left + 1 keys when right is 0, the query's own position among them.
///
/// Errors    ShapeError if left or right is negative
struct SlidingWindow {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "SlidingWindow";
  Required<Index, "SlidingWindow: left"> left;
  Index right = 0;

  MHA_HOST_DEVICE constexpr bool operator()(Index, Index, Index q, Index k) const {
    return k >= std::int64_t{q} - left.value && k <= std::int64_t{q} + right;
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index, Index, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    const std::int64_t first = q_begin, last = std::int64_t{q_end} - 1;
    if (k_end - 1 < first - left.value || k_begin > last + right) return TileVisibility::none;
    return k_begin >= last - left.value && k_end - 1 <= first + right ? TileVisibility::full : TileVisibility::partial;
  }
  void check(Index) const {
    detail::require(left.value >= 0, "SlidingWindow: left is ", left.value, ", it must be at least 0");
    detail::require(right >= 0, "SlidingWindow: right is ", right, ", it must be at least 0");
  }
  SlidingWindow prepared(const CallShape& s) const {
    check(s.heads);
    return *this;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
