// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../core/check.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The first keys of every sequence, for all queries, those before them too: attention sinks of a model with a window
/// are Causal{} && (SlidingWindow{.left = 1023} || FirstKeys{.count = 4}).
///
/// Errors    ShapeError if count is negative
/// Source    Xiao et al. 2024 (StreamingLLM), §3.2, whose positions are those in the cache; here they are the text's
struct FirstKeys {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "FirstKeys";
  Required<Index, "FirstKeys: count"> count;

  MHA_HOST_DEVICE constexpr bool operator()(Index, Index, Index, Index k) const { return k < count.value; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index, Index, Index, Index, Index k_begin, Index k_end) const {
    if (k_begin >= count.value) return TileVisibility::none;
    return k_end <= count.value ? TileVisibility::full : TileVisibility::partial;
  }
  void check(Index) const {
    detail::require(count.value >= 0, "FirstKeys: count is ", count.value, ", it must be at least 0");
  }
  FirstKeys prepared(const CallShape& s) const {
    check(s.heads);
    return *this;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
