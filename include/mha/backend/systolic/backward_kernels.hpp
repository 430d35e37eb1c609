// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../simd/backward_kernels.hpp"
#include "../simd/exp2.hpp"
#include "array.hpp"
#include "product_unit.hpp"
#include "softmax.hpp"
#include "tile_product.hpp"
#include "tile_rows.hpp"
#include "tiles.hpp"

/// What lies between the five products of the backward pass: weights by forward's rule, and operands rounded and laid
/// in tiles.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// A rule of weights, as simd::WeightGradientBody wants one: forward's bfloat16 weights over their sum.
///
/// Numerics  before the division the bits of WeightsBody for an anchor `level`
template <bool Lookup> struct ArrayWeights {
  template <class A, class Isa> struct Lanes {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    using Steps = WeightSteps<Lookup>;
    V anchor, start, factor, least;
    I far, table{}, word;
    float slope;

    MHA_ALWAYS_INLINE Lanes(const simd::BackwardRows<float>& rows, Index lane, float by) : slope(by * octave) {
      constexpr float whole_steps = 0x1.8p16f;  // as RaiseBody rounds an anchor
      const V zero{};
      simd::load(anchor, rows.level + lane);
      anchor = anchor == -std::numeric_limits<float>::infinity() ? zero : anchor;
      const V exact = anchor * by;
      I is_far;
      not_below(exact, far_anchor, is_far);
      V rounded = exact + whole_steps;
      simd::round_here(rounded);
      const V offset = is_far ? exact : rounded - whole_steps;
      not_below(offset, far_anchor, far);
      start = (Steps::counts + 127.f * octave) - offset * octave;
      V log2_sum;
      simd::load(log2_sum, rows.log2_sum + lane);
      factor = zero - log2_sum;
      simd::exp2_in_place<float, Isa>(factor);
      least = zero + Steps::counts;
      word = (I)least;
      Steps::template load_table<Isa>(table);
    }
    MHA_ALWAYS_INLINE void of(const V& x, V& p) const {
      V n = x;
      Steps::template count<true, Isa>(n, slope, start, anchor, far, least);
      I bits = (I)n;
      Steps::template subtract_chord<Isa>(bits, table, word);
      p = (V)(bits << 16) * factor;
    }
  };
};

/// p and ds (keys, lanes) rounded: rows of A operands, and ds as the B tiles (keys / 32, lanes / 16, 16 pairs, 16).
/// Each may be null, ds with its tiles.
struct RoundPairs {
  const float *p, *ds;
  Index keys, lanes;  ///< keys a multiple of 32
  bfloat16 *p_rows, *ds_rows;
  std::ptrdiff_t stride;  ///< of the rows
  std::uint32_t* ds_tiles;
};
struct RoundPairsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(RoundPairs to) {
    constexpr Index W = simd::Vector<float, Isa>::width;
    for (Index lane = 0; lane < to.lanes; lane += W) {
      for (Index k = 0; k < to.keys; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * to.lanes + lane, row = k * to.stride + lane;
        typename simd::Vector<float, Isa>::int_type even, odd;
        if (to.p != nullptr) two<Isa>(to.p + at, to.lanes, to.p_rows + row, to.stride, even, odd);
        if (to.ds == nullptr) continue;
        two<Isa>(to.ds + at, to.lanes, to.ds_rows + row, to.stride, even, odd);
        std::uint32_t* const tile = to.ds_tiles + lane / tile_side * tile_words + lane % tile_side;
        simd::store(tile + k / tile_depth * (to.lanes / tile_side) * tile_words + k % tile_depth / 2 * tile_side,
                    even | odd << 16);
      }
    }
  }

 private:
  /// A register of each of two rows.
  template <class Isa, class I>
  MHA_ALWAYS_INLINE static void two(const float* from, Index lanes, bfloat16* to, std::ptrdiff_t stride, I& even,
                                    I& odd) {
    simd::vector_t<float, Isa> x, y;
    simd::load(x, from);
    simd::load(y, from + lanes);
    nearest_bits<Isa>(x, even);
    nearest_bits<Isa>(y, odd);
    store_low<Isa>(even, to);
    store_low<Isa>(odd, to + stride);
  }
  template <class Isa, class I> MHA_ALWAYS_INLINE static void store_low(const I& bits, bfloat16* to) {
    typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes / 2)));
    const Short narrow = __builtin_convertvector(bits, Short);
    std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
  }
};

#if defined(__x86_64__)
/// The same by the instruction that rounds to bfloat16: what is below the normal range becomes zero, as it does in the
/// products of the units that have it.
struct RoundPairsToBfloat16 {
  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(RoundPairs to) {
    typedef std::uint16_t Words __attribute__((vector_size(64)));
    constexpr Words in_pairs = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    for (Index lane = 0; lane < to.lanes; lane += tile_side) {
      for (Index k = 0; k < to.keys; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * to.lanes + lane, row = k * to.stride + lane;
        Words both;
        if (to.p != nullptr) two(to.p + at, to.lanes, to.p_rows + row, to.stride, both);
        if (to.ds == nullptr) continue;
        two(to.ds + at, to.lanes, to.ds_rows + row, to.stride, both);
        asm("vpermw %1, %2, %0" : "=v"(both) : "v"(both), "v"(in_pairs));
        std::uint32_t* const tiles = to.ds_tiles + lane / tile_side * tile_words;
        std::memcpy(tiles + k / tile_depth * (to.lanes / tile_side) * tile_words + k % tile_depth / 2 * tile_side,
                    &both, sizeof both);
      }
    }
  }

 private:
  /// 16 lanes of two rows.
  template <class Words>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void two(const float* from, Index lanes, bfloat16* to,
                                                           std::ptrdiff_t stride, Words& both) {
    typedef float V __attribute__((vector_size(64)));
    constexpr std::size_t row_bytes = sizeof both / 2;
    V x, y;
    simd::load(x, from);
    simd::load(y, from + lanes);
    narrow(x, y, both);
    std::memcpy(static_cast<void*>(to), &both, row_bytes);
    std::memcpy(static_cast<void*>(to + stride), reinterpret_cast<const char*>(&both) + row_bytes, row_bytes);
  }
};
#endif

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
          low &= (Short)((low & exponent) != exponent);
          high &= (Short)((high & exponent) != exponent);
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

/// What the backward pass computes with.
struct BackwardKernels {
  ProductUnit product;  ///< queries in lanes: S, dP and dQ
  ProductUnit sums;     ///< 32 columns of dK or dV
  IsaLevel level;
  ArrayUse (*use)(Index m, Index n, Index k);
  simd::PairKernels<float> pairs;
  void (*round)(RoundPairs);
  void (*pack_depth)(const bfloat16*, std::ptrdiff_t, Index, Index, Index, std::uint32_t*, std::ptrdiff_t);
  void (*pack_columns)(const bfloat16*, std::ptrdiff_t, Index, Index, std::uint32_t*);
  void (*pack_transposed)(const bfloat16*, std::ptrdiff_t, Index, bfloat16*, std::ptrdiff_t, bool*);
  void (*finite)(const bfloat16*, std::ptrdiff_t, bool*);
};

template <class Array = AmxArray>
BackwardKernels backward_kernels(const ProductUnit& product, const ProductUnit& sums, IsaLevel level,
                                 bool byte_lookup = has_byte_lookup()) {
  return simd::with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    void (*round)(RoundPairs) = &Isa::template run<RoundPairsBody, RoundPairs>;
#if defined(__x86_64__)
    if (product.unit != MatrixUnit::portable && rounds_to_bfloat16(level))
      round = &Avx512Bf16::run<RoundPairsToBfloat16, RoundPairs>;
#endif
    return BackwardKernels{
        product,
        sums,
        level,
        &array_use<Array>,
        byte_lookup ? simd::pair_kernels_of<float, ArrayWeights<true>>(isa)
                    : simd::pair_kernels_of<float, ArrayWeights<false>>(isa),
        round,
        &Isa::template run<PackDepthBody, const bfloat16*, std::ptrdiff_t, Index, Index, Index, std::uint32_t*,
                           std::ptrdiff_t>,
        &Isa::template run<PackColumnsBody, const bfloat16*, std::ptrdiff_t, Index, Index, std::uint32_t*>,
        &Isa::template run<PackTransposedBody, const bfloat16*, std::ptrdiff_t, Index, bfloat16*, std::ptrdiff_t,
                           bool*>,
        &Isa::template run<FiniteBody, const bfloat16*, std::ptrdiff_t, bool*>};
  });
}

/// What runs an array's dK and dV: as attention's other products, with as many columns as dense ones.
template <class Array> ProductUnit sums_unit() {
  return product_unit<2, std::min(Array::depth, key_block)>(unit_for<Array>(), current_isa());
}
template <class Array> BackwardKernels backward_kernels_of() {
  return backward_kernels<Array>(attention_unit<Array>(), sums_unit<Array>(), current_isa());
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
