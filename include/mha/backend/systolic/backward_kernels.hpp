// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../simd/backward_kernels.hpp"
#include "array.hpp"
#include "backward_unit.hpp"
#include "pair_operands.hpp"
#include "pair_weights.hpp"
#include "product_unit.hpp"
#include "softmax.hpp"
#include "tile_product.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

/// What lies between the five products of the backward pass.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// B tiles of rows as they are, the depth down the rows: rows (2·pairs, 32·groups) `stride` apart, the first of which
/// is an even row of the operand → (groups, rows / 32, 2, 16 pairs, 16), groups `group` words apart; `to` is where the
/// first row's tile would begin. NaN and infinities become 0.
struct PackDepthBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const bfloat16* rows, std::ptrdiff_t stride, Index first, Index pairs, Index groups,
                                    std::uint32_t* to, std::ptrdiff_t group) {
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr Index W = simd::Vector<float, Isa>::width;
    constexpr std::uint16_t exponent = 0x7f80;
    typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes / 2)));
    for (Index i = first / 2; i < first / 2 + pairs; ++i, rows += 2 * stride)
      for (Index g = 0; g < groups; ++g) {
        std::uint32_t* const tiles = to + g * group + i / tile_side * 2 * tile_words + i % tile_side * tile_side;
        for (Index j = 0; j < tile_depth; j += W) {
          Short low, high;
          std::memcpy(&low, rows + g * tile_depth + j, sizeof low);
          std::memcpy(&high, rows + stride + g * tile_depth + j, sizeof high);
          low &= Short((low & exponent) != exponent);
          high &= Short((high & exponent) != exponent);
          const I even = __builtin_convertvector(low, I), odd = __builtin_convertvector(high, I);
          simd::store(tiles + j / tile_side * tile_words + j % tile_side, even | odd << 16);
        }
      }
  }
};

/// Whether all of n numbers, a multiple of 32, are finite.
struct FiniteBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const bfloat16* x, std::ptrdiff_t n, bool* finite) {
    simd::vector_t<std::uint16_t, Isa> found{}, words;
    constexpr Index width = simd::Vector<std::uint16_t, Isa>::width;
    constexpr std::uint16_t number = 0x7fff, carry = 0x80;  // into the sign, from the exponent of what is not finite
    for (std::ptrdiff_t i = 0; i < n; i += width) {
      std::memcpy(&words, x + i, sizeof words);
      found |= (words & number) + carry;
    }
    *finite = true;
    for (Index i = 0; i < width; ++i) *finite = *finite && found[i] < 0x8000u;
  }
};

template <class Array, bool Lookup> BackwardKernels backward_kernels_by(const BackwardUnits& units, IsaLevel level) {
  using Rule = ArrayWeights<Lookup>;
  return simd::with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    void (*round)(RoundPairs) = &Isa::template run<RoundPairsBody, RoundPairs>;
    void (*weigh)(const WeighPairs&, const TileProduct*, Index) =
        &Isa::template run<WeighPairsBody<Rule>, const WeighPairs&, const TileProduct*, Index>;
    bool interleaves = false;
#if defined(__x86_64__)
    if (units.product.unit != MatrixUnit::portable && rounds_to_bfloat16(level)) {
      round = &Avx512Bf16::run<ConvertPairsBody, RoundPairs>;
      weigh = &Avx512Bf16::run<WeighAndConvertPairsBody<Rule>, const WeighPairs&, const TileProduct*, Index>;
      if (units.product.unit == MatrixUnit::amx) {
        interleaves = true;
        weigh = &Avx512Bf16::run<WeighAmongProductsBody<Rule>, const WeighPairs&, const TileProduct*, Index>;
      }
    }
#endif
    return BackwardKernels{
        units,
        level,
        &array_use<Array>,
        simd::pair_kernels_of<float, Rule>(isa),
        round,
        &Isa::template run<PrepareLanesBody<Rule>, simd::BackwardRows<float>, Index, float, float*>,
        weigh,
        interleaves,
        &Isa::template run<PackDepthBody, const bfloat16*, std::ptrdiff_t, Index, Index, Index, std::uint32_t*,
                           std::ptrdiff_t>,
        &Isa::template run<PackColumnsBody, const bfloat16*, std::ptrdiff_t, Index, Index, std::uint32_t*>,
        &Isa::template run<PackTransposedBody, const bfloat16*, std::ptrdiff_t, Index, bfloat16*, std::ptrdiff_t,
                           bool*>,
        &Isa::template run<FiniteBody, const bfloat16*, std::ptrdiff_t, bool*>};
  });
}
template <class Array = AmxArray>
BackwardKernels backward_kernels(const BackwardUnits& units, IsaLevel level, bool byte_lookup = has_byte_lookup()) {
  return byte_lookup ? backward_kernels_by<Array, true>(units, level) : backward_kernels_by<Array, false>(units, level);
}

/// Sums over pairs are in steps of 32 whatever the array's depth: where they begin depends on what the other rows of a
/// tile see, and a deeper pass would add in another order.
template <class Array> BackwardUnits backward_units() {
  const ProductUnit product = attention_unit<Array>();
  return {product, product_unit<3, tile_depth>(product.unit, current_isa()),
          product_unit<2, tile_depth>(product.unit, current_isa())};
}
template <class Array> BackwardKernels backward_kernels_of() {
  return backward_kernels<Array>(backward_units<Array>(), current_isa());
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
