// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../core/borrowed.hpp"
#include "../lengths.hpp"
#include "../mask.hpp"
#include "positional.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The first lengths[b] keys are visible to every query, the rest causally: a prefix language model.
///
/// Shapes    lengths (B)
/// Errors    as for Padding
/// Source    Raffel et al. 2020 (T5), §3.2.1
struct Prefix {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Prefix";
  static constexpr bool borrows = true;
  Borrowed<Index> lengths;

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index, Index q, Index k) const { return k < lengths[b] || k <= q; }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    if (k_end <= lengths[b]) return TileVisibility::full;
    const auto causal = Causal{}.tile(b, h, q_begin, q_end, k_begin, k_end);
    return causal == TileVisibility::none && k_begin < lengths[b] ? TileVisibility::partial : causal;
  }
  Prefix prepared(const CallShape& s) const {
    detail::require_lengths("Prefix", lengths, s);
    return *this;
  }
  template <class F> Prefix with_data(F&& f) const { return {f(lengths)}; }
};

}  // namespace mha::inline MHA_NAMESPACE
