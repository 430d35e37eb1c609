// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "amx.hpp"
#include "tiles.hpp"
#include "unit.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// Lines of 64 bytes.
inline constexpr Index next_lines = 4;

/// c (16·tiles, lanes) = A (16·tiles, 32·steps) · B (32·steps, lanes), or += with `add`: both products of attention,
/// with queries in lanes.
struct TileProduct {
  const bfloat16* a;           ///< row i of tile t, step s at a + t·tile_stride + s·step_stride + i·row_stride
  std::ptrdiff_t tile_stride;  ///< these in numbers
  const std::uint32_t* b;      ///< (steps, lanes / 16, 16 pairs, 16)
  float* c;
  Index tiles = 0, steps = 0;
  bool add;
  std::ptrdiff_t step_stride = tile_size, row_stride = tile_depth;
  Index rows = tiles * tile_side;  ///< of c that are wanted, more than 16·(tiles − 1); what the others get is undefined
  std::uintptr_t next = 0;         ///< with passes_by, address of what a later product reads: each step
                                   ///< prefetches next_lines of it
  bool passes_by = false;          ///< a is read once while b serves again, and need not stay in the first-level cache
};

/// A matrix unit as attention uses it: how many queries lie side by side, and the product. After some 1000 cycles
/// without one Intel's tiles go idle, and take as long to start again: stay_awake() between pieces of other work
/// prevents that.
struct ProductUnit {
  MatrixUnit unit;
  Index lanes;
  void (*multiply)(const TileProduct&);
  void (*stay_awake)() = [] {};
  const ProductUnit* fewer = nullptr;  ///< the same unit with fewer lanes, if it has a choice

  /// The least lanes that hold so many queries; the bits of a lane are the same.
  const ProductUnit& of_lanes(Index queries) const {
    return fewer != nullptr && queries <= fewer->lanes ? fewer->of_lanes(queries) : *this;
  }
};

/// What a unit needs of the calling thread while it multiplies.
class UnitScope {
 public:
#if defined(__x86_64__)
  explicit UnitScope(MatrixUnit unit) {
    if (unit == MatrixUnit::amx) tiles_.emplace();
  }

 private:
  std::optional<amx::TileScope> tiles_;
#else
  explicit UnitScope(MatrixUnit) {}
#endif
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
