// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../simd/dropout.hpp"
#include "../simd/vector.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Of weights (lanes / 16, 16, 16), pairs of keys from `first` on, those that dropout drops become 0.
struct DropWeightsBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(std::uint32_t* weights, Index lanes, Index first, simd::LaneDraws of) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    const V zero{};
    const I none{}, even = none + 0xffffu, odd = ~even;
    for (Index lane = 0; lane < lanes; lane += W) {
      const simd::DropoutFactors<float, Isa> factors(of.position + lane, of.row + lane, of.draws);
      std::uint32_t* at = weights + lane / tile_side * tile_words + lane % tile_side;
      for (Index k = 0; k < tile_depth; k += 4) {
        float factor[std::size_t{4 * W}];
        factors.of((first + k) / 4, +factor);
        for (int pair = 0; pair < 2; ++pair, at += tile_side) {
          V x, y;
          I w;
          simd::load(x, factor + 2 * pair * W);
          simd::load(y, factor + (2 * pair + 1) * W);
          simd::load(w, at);
          w &= (x > zero ? even : none) | (y > zero ? odd : none);
          simd::store(at, w);
        }
      }
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
