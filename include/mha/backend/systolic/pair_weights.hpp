// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "../simd/backward_kernels.hpp"
#include "../simd/exp2.hpp"
#include "../simd/vector.hpp"
#include "amx_steps.hpp"
#include "pair_operands.hpp"
#include "product_unit.hpp"
#include "softmax.hpp"
#include "tiles.hpp"
#include "unit.hpp"

/// Weights by forward's rule and their gradients, rounded to the operands of the backward pass's other products.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// A rule of weights, as simd::WeightGradientBody wants one: forward's bfloat16 weights over their sum.
///
/// Numerics  before the division the bits of WeightsBody for an anchor `level`
template <bool Lookup> struct ArrayWeights {
  template <class A, class Isa> struct Lanes {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    using Steps = WeightSteps<Lookup>;
    V from, start, factor;  ///< a logit counts start + (logit − from) slope steps, `from` 0 but for far anchors
    V slope;

    MHA_ALWAYS_INLINE Lanes(const simd::BackwardRows<float>& rows, Index lane, float by) {
      simd::broadcast(slope, by * octave);
      constexpr float whole_steps = 0x1.8p16f;  // as RaiseBody rounds an anchor
      constexpr float zero_steps = Steps::counts + 127.f * octave;
      const V zero{};
      V anchor;
      simd::load(anchor, rows.level + lane);
      anchor = anchor == -std::numeric_limits<float>::infinity() ? zero : anchor;
      const V exact = anchor * by;
      I far;
      not_below(exact, far_anchor, far);
      V rounded = exact + whole_steps;
      simd::round_here(rounded);
      const V offset = far ? exact : rounded - whole_steps;
      not_below(offset, far_anchor, far);
      from = far ? anchor : zero;
      start = far ? zero + zero_steps : zero_steps - offset * octave;
      V log2_sum;
      simd::load(log2_sum, rows.log2_sum + lane);
      factor = zero - log2_sum;
      simd::exp2_in_place<float, Isa>(factor);
    }
    /// Of a tile's first lane on, as store() left them.
    MHA_ALWAYS_INLINE Lanes(const float* stored, Index lanes, float by) {
      simd::broadcast(slope, by * octave);
      simd::load(from, stored);
      simd::load(start, stored + lanes);
      simd::load(factor, stored + 2 * lanes);
    }
    MHA_ALWAYS_INLINE void store(float* to, Index lanes) const {
      simd::store(to, from);
      simd::store(to + lanes, start);
      simd::store(to + 2 * lanes, factor);
    }
    MHA_ALWAYS_INLINE void of(const V& x, V& p) const {
      const V least = V{} + Steps::counts;
      I table{};
      Steps::template load_table<Isa>(table);
      V n = (x - from) * slope + start;
      simd::raise<float>(n, least);
      n = n == n ? n : V(I(least) | 0x7fffu);
      I bits = I(n);
      Steps::template subtract_chord<Isa>(bits, table, I(least));
      p = V(bits << 16) * factor;
    }
  };
};

/// What WeighPairs has of a tile's lanes, for all its keys: (3, lanes).
template <class Rule> struct PrepareLanesBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(simd::BackwardRows<float> rows, Index lanes, float slope, float* to) {
    for (Index lane = 0; lane < lanes; lane += simd::Vector<float, Isa>::width)
      typename Rule::template Lanes<float, Isa>(rows, lane, slope).store(to + lane, lanes);
  }
};

/// A register of each of two keys, k and the next, into operands.
struct NearestPairs {
  template <class Isa, class V>
  MHA_ALWAYS_INLINE static void put_p(const V& x, const V& y, Index k, Index lane, const PairOperands& to) {
    typename simd::Vector<float, Isa>::int_type even, odd;
    two<Isa>(x, y, to.p_rows + to.at(k, lane), even, odd);
  }
  template <class Isa, class V>
  MHA_ALWAYS_INLINE static void put_ds(const V& x, const V& y, Index k, Index lane, const PairOperands& to) {
    typename simd::Vector<float, Isa>::int_type even, odd;
    two<Isa>(x, y, to.ds_rows + to.at(k, lane), even, odd);
    simd::store(to.tile(k, lane) + lane % tile_side, even | odd << 16);
  }

 private:
  template <class Isa, class V, class I>
  MHA_ALWAYS_INLINE static void two(const V& x, const V& y, bfloat16* to, I& even, I& odd) {
    nearest_bits<Isa>(x, even);
    nearest_bits<Isa>(y, odd);
    store_low<Isa>(even, to);
    store_low<Isa>(odd, to + tile_depth);
  }
  template <class Isa, class I> MHA_ALWAYS_INLINE static void store_low(const I& bits, bfloat16* to) {
    typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes / 2)));
    const Short narrow = __builtin_convertvector(bits, Short);
    std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
  }
};

struct RoundPairsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(RoundPairs of) {
    for (Index lane = 0; lane < of.lanes; lane += simd::Vector<float, Isa>::width)
      for (Index k = 0; k < tile_depth; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * of.lanes + lane;
        simd::vector_t<float, Isa> x, y;
        simd::load(x, of.p + at);
        simd::load(y, of.p + at + of.lanes);
        NearestPairs::put_p<Isa>(x, y, k, lane, of.to);
        if (of.ds == nullptr) continue;
        simd::load(x, of.ds + at);
        simd::load(y, of.ds + at + of.lanes);
        NearestPairs::put_ds<Isa>(x, y, k, lane, of.to);
      }
  }
};

/// Takes no products.
template <class Rule> struct WeighPairsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const WeighPairs& of, const TileProduct*, Index) {
    using Lanes = simd::WeightGradientLanes<float, Isa, Rule>;
    for (Index lane = 0; lane < of.lanes; lane += simd::Vector<float, Isa>::width) {
      const Lanes weigh({of.prepared + lane, of.lanes, of.slope}, of.delta + lane);
      for (Index k = 0; k < tile_depth; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * of.lanes + lane;
        simd::vector_t<float, Isa> p[2], d[2];
        weigh.template of<false>(of.s + at, of.dp + at, nullptr, nullptr, p[0], d[0]);
        weigh.template of<false>(of.s + at + of.lanes, of.dp + at + of.lanes, nullptr, nullptr, p[1], d[1]);
        NearestPairs::put_p<Isa>(p[0], p[1], k, lane, of.to);
        NearestPairs::put_ds<Isa>(d[0], d[1], k, lane, of.to);
      }
    }
  }
};

#if defined(__x86_64__)
/// The same by the instruction that rounds to bfloat16: what is below the normal range becomes zero, as it does in the
/// products of the units that have it.
struct ConvertedPairs {
  typedef std::uint16_t Words __attribute__((vector_size(64)));
  static constexpr Words in_pairs = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

  template <class V>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void put_p(const V& x, const V& y, Index k, Index lane,
                                                             const PairOperands& to) {
    Words both;
    two(x, y, to.p_rows + to.at(k, lane), both);
  }
  template <class V>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void put_ds(const V& x, const V& y, Index k, Index lane,
                                                              const PairOperands& to) {
    Words both;
    two(x, y, to.ds_rows + to.at(k, lane), both);
    put_tile(both, to.tile(k, lane));
  }
  /// 32 lanes of a key.
  template <class V>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void put_row(const V& x, const V& y, bfloat16* to) {
    Words both;
    narrow(x, y, both);
    std::memcpy(static_cast<void*>(to), &both, sizeof both);
  }
  /// 16 lanes of two keys.
  template <class V>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void put_pairs(const V& x, const V& y, std::uint32_t* to) {
    Words both;
    narrow(x, y, both);
    put_tile(both, to);
  }

 private:
  template <class V>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void two(const V& x, const V& y, bfloat16* to, Words& both) {
    constexpr std::size_t row_bytes = sizeof both / 2;
    narrow(x, y, both);
    std::memcpy(static_cast<void*>(to), &both, row_bytes);
    std::memcpy(static_cast<void*>(to + tile_depth), reinterpret_cast<const char*>(&both) + row_bytes, row_bytes);
  }
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void put_tile(Words& both, std::uint32_t* to) {
    const Words order = in_pairs;
    asm("vpermw %1, %2, %0" : "=v"(both) : "v"(both), "v"(order));
    std::memcpy(to, &both, sizeof both);
  }
};

/// RoundPairsBody over ConvertedPairs, a loop of its own: its functions have a target, which no template argument
/// gives.
struct ConvertPairsBody {
  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(RoundPairs of) {
    for (Index lane = 0; lane < of.lanes; lane += tile_side)
      for (Index k = 0; k < tile_depth; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * of.lanes + lane;
        simd::vector_t<float, Isa> x, y;
        simd::load(x, of.p + at);
        simd::load(y, of.p + at + of.lanes);
        ConvertedPairs::put_p(x, y, k, lane, of.to);
        if (of.ds == nullptr) continue;
        simd::load(x, of.ds + at);
        simd::load(y, of.ds + at + of.lanes);
        ConvertedPairs::put_ds(x, y, k, lane, of.to);
      }
  }
};

/// WeighPairsBody over ConvertedPairs, a loop of its own as ConvertPairsBody.
/// Takes no products.
template <class Rule> struct WeighAndConvertPairsBody {
  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(const WeighPairs& of, const TileProduct*, Index) {
    using Lanes = simd::WeightGradientLanes<float, Isa, Rule>;
    for (Index lane = 0; lane < of.lanes; lane += tile_side) {
      const Lanes weigh({of.prepared + lane, of.lanes, of.slope}, of.delta + lane);
      for (Index k = 0; k < tile_depth; k += 2) {
        const std::ptrdiff_t at = std::ptrdiff_t{k} * of.lanes + lane;
        simd::vector_t<float, Isa> p[2], d[2];
        weigh.template of<false>(of.s + at, of.dp + at, nullptr, nullptr, p[0], d[0]);
        weigh.template of<false>(of.s + at + of.lanes, of.dp + at + of.lanes, nullptr, nullptr, p[1], d[1]);
        ConvertedPairs::put_p(p[0], p[1], k, lane, of.to);
        ConvertedPairs::put_ds(d[0], d[1], k, lane, of.to);
      }
    }
  }
};

/// On AMX, 32 lanes: a step of the products alternates with two keys, so that the unit and the vector code run at the
/// same time and the unit does not go idle.
template <class Rule> struct WeighAmongProductsBody {
  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(const WeighPairs& of, const TileProduct* products, Index n) {
    using V = simd::vector_t<float, Isa>;
    using Lanes = simd::WeightGradientLanes<float, Isa, Rule>;
    constexpr Index lanes = 2 * tile_side, turns = tile_depth / 2;
    Lanes left({of.prepared, lanes, of.slope}, of.delta),
        right({of.prepared + tile_side, lanes, of.slope}, of.delta + tile_side);
    AmxSteps steps(products, n);
    const float *const s = of.s, *const dp = of.dp;
    bfloat16 *const p_rows = of.to.p_rows + of.to.at(0, 0), *const ds_rows = of.to.ds_rows + of.to.at(0, 0);
    std::uint32_t* const tiles = of.to.ds_tiles;
    const Index all = steps.left();
    Index due = 0;
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{turns} * tile_side; i += tile_side) {
      for (due += all; due >= turns; due -= turns) steps.run();
      // In registers: g++ would read them from memory for every pair.
      asm(""
          : "+v"(left.weights.from), "+v"(left.weights.start), "+v"(left.weights.factor), "+v"(left.delta),
            "+v"(right.weights.from), "+v"(right.weights.start), "+v"(right.weights.factor), "+v"(right.delta),
            "+v"(left.weights.slope));
      right.weights.slope = left.weights.slope;
      const float *const x = s + 4 * i, *const y = dp + 4 * i;
      V p[4], d[4];
      left.template of<false>(x, y, nullptr, nullptr, p[0], d[0]);
      right.template of<false>(x + tile_side, y + tile_side, nullptr, nullptr, p[1], d[1]);
      left.template of<false>(x + lanes, y + lanes, nullptr, nullptr, p[2], d[2]);
      right.template of<false>(x + lanes + tile_side, y + lanes + tile_side, nullptr, nullptr, p[3], d[3]);
      ConvertedPairs::put_row(p[0], p[1], p_rows + 4 * i);
      ConvertedPairs::put_row(p[2], p[3], p_rows + 4 * i + tile_depth);
      ConvertedPairs::put_row(d[0], d[1], ds_rows + 4 * i);
      ConvertedPairs::put_row(d[2], d[3], ds_rows + 4 * i + tile_depth);
      ConvertedPairs::put_pairs(d[0], d[2], tiles + i);
      ConvertedPairs::put_pairs(d[1], d[3], tiles + tile_words + i);
    }
    steps.finish();
  }
};
#endif

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
