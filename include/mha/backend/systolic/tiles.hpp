// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "../../core/check.hpp"
#include "../../core/scalar.hpp"
#include "../simd/vector.hpp"

/// The two tile shapes of a bfloat16 product. The left operand A lies in tiles of 16 rows × 32 of the depth, by rows.
/// The right operand B lies in tiles of 32 of the depth × 16 columns, as 32-bit words that hold the elements 2i, 2i + 1
/// of one column: (16 pairs, 16 columns). Each tile is 1 KiB of consecutive memory.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

inline constexpr Index tile_side = 16;    ///< rows of an A tile, columns of a B tile
inline constexpr Index tile_depth = 32;   ///< bfloat16 numbers along the depth
inline constexpr Index tile_words = 256;  ///< 32-bit words of a tile
inline constexpr Index tile_size = 512;   ///< bfloat16 numbers of a tile

/// Keys over which one step of the online softmax goes. Steps start at absolute multiples, so that a row's bits do not
/// depend on which other rows or keys are in the call.
inline constexpr Index key_block = 64;

/// Keys whose values lie together, and whose weights are multiplied in one go.
inline constexpr Index value_block = 256;
/// Columns of the output that leave a tile of queries at a time.
inline constexpr Index stored_at_once = 64;

constexpr Index round_up(Index n, Index to) { return blocks_of(n, to) * to; }

/// The bits of the bfloat16 numbers nearest to x, ties to even, in the low half of each lane.
template <class Isa>
MHA_ALWAYS_INLINE void nearest_bits(const simd::vector_t<float, Isa>& x,
                                    typename simd::Vector<float, Isa>::int_type& to) {
  using I = typename simd::Vector<float, Isa>::int_type;
  const I bits = I(x), kept = bits >> 16;
  const I rounded = (bits + 0x7fffu + (kept & 1u)) >> 16;
  to = x == x ? rounded : kept | 0x40u;  // a NaN stays one even if only lower bits were set
}

/// to ← the bfloat16 numbers nearest to a register of floats.
template <class Isa> MHA_ALWAYS_INLINE void store_nearest(const simd::vector_t<float, Isa>& x, bfloat16* to) {
  typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes / 2)));
  typename simd::Vector<float, Isa>::int_type bits;
  nearest_bits<Isa>(x, bits);
  const Short narrow = __builtin_convertvector(bits, Short);
  std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
