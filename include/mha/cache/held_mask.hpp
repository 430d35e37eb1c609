// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../policy/mask.hpp"
#include "kv_source.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// A mask that also hides the positions that a source has dropped, for kernels that read their rows all the same.
template <class M, class Source> struct HeldMask {
  static constexpr Role role = Role::mask;
  M mask;
  Source kv;

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index h, Index q, Index k) const {
    return held(kv, b, k) == k && mask(b, h, q, k);
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    const Index first = held(kv, b, k_begin);
    if (first >= k_end) return TileVisibility::none;
    const TileVisibility seen = mha::tile(mask, b, h, q_begin, q_end, k_begin, k_end);
    const bool whole = first == k_begin && held_end(kv, b, k_begin, k_end) == k_end;
    return whole || seen == TileVisibility::none ? seen : TileVisibility::partial;
  }
};

/// A prepared mask for keys from this source: the mask itself where the source drops none.
template <class M, class Source> auto mask_of_held(const M& mask, const Source& kv) {
  if constexpr (DropsKeys<Source>)
    return HeldMask<M, Source>{mask, kv};
  else
    return mask;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
