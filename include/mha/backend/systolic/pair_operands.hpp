// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "tiles.hpp"

/// What kernels of pairs, P and dS, take and leave.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Where p and ds (32 keys, lanes) lie as operands: rows of 32 queries for A tiles, and ds as B tiles (lanes / 16,
/// 16 pairs, 16).
struct PairOperands {
  bfloat16 *p_rows, *ds_rows;
  std::ptrdiff_t step;  ///< from 32 queries to the next 32
  Index before;         ///< queries before the first lane
  std::uint32_t* ds_tiles;

  MHA_ALWAYS_INLINE std::ptrdiff_t at(Index k, Index lane) const {
    const Index query = before + lane;
    return query / tile_depth * step + std::ptrdiff_t{k} * tile_depth + query % tile_depth;
  }
  /// The row of the tile of a lane that pairs of key k, an even one, lie in.
  MHA_ALWAYS_INLINE std::uint32_t* tile(Index k, Index lane) const {
    return ds_tiles + lane / tile_side * tile_words + k / 2 * tile_side;
  }
};

/// p and ds (32 keys, lanes) rounded. ds may be null.
struct RoundPairs {
  const float *p, *ds;
  Index lanes;
  PairOperands to;
};

/// What simd::WeightGradientBody makes of s and dp (32 keys, lanes), rounded at once.
struct WeighPairs {
  const float *s, *dp;
  Index lanes;
  const float *prepared, *delta;  ///< by PrepareLanesBody
  float slope;
  PairOperands to;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
