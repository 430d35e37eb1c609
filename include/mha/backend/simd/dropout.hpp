// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../config.hpp"
#include "../../core/philox.hpp"
#include "../../policy/dropout.hpp"
#include "isa.hpp"
#include "vector.hpp"

/// The random numbers of dropout for a tile (keys, lanes) with queries in lanes, four keys at a time.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Lanes of a tile, at most.
inline constexpr Index most_lanes = 64;

/// What the pairs of a tile drop: of each lane its query's position and the row b·Hq + h.
///
/// Shapes    position, row (lanes)
struct LaneDraws {
  const std::uint32_t *position, *row;
  DropoutDraws draws;
};

/// The lanes of a tile; those without a query drop anything.
struct DroppingLanes {
  std::uint32_t position[std::size_t{most_lanes}] = {}, row[std::size_t{most_lanes}] = {};

  /// Of query head h of sequence b the queries from position q on, in lanes [lane, lane + count).
  template <class Call> void set(const Call& call, Index b, Index h, Index q, Index lane, Index count) {
    for (Index i = 0; i < count; ++i) {
      position[lane + i] = static_cast<std::uint32_t>(q) + static_cast<std::uint32_t>(i);
      row[lane + i] = dropout_row(call.shape, b, h);
    }
  }
  LaneDraws of(const DropoutDraws& draws) const { return {position, row, draws}; }
};

/// product ← the 64-bit products of the low 32 bits of every lane.
template <class Isa, class I> MHA_ALWAYS_INLINE void multiply_words(I& product, const I& a, const I& b) {
#if MHA_WIDE_ASM
  // g++ would multiply all 64 bits.
  if constexpr (Isa::register_bytes > 16) {
    asm("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return;
  }
#elif MHA_NEON_ASM
  double low, other;
  asm("xtn %0.2s, %1.2d" : "=w"(low) : "w"(a));
  asm("xtn %0.2s, %1.2d" : "=w"(other) : "w"(b));
  asm("umull %0.2d, %1.2s, %2.2s" : "=w"(product) : "w"(low), "w"(other));
  return;
#endif
  product = (a & 0xffffffffu) * b;
}

/// The factors of one register of lanes, block of four keys by block: philox4x32<7>, its counter {block, position, row,
/// offset}. What of the first two rounds depends on the lanes alone, or on the block alone, is computed apart.
template <class A, class Isa> class DropoutFactors {
  using V = vector_t<A, Isa>;
  using Wide = typename Vector<double, Isa>::int_type;
  using Int = typename Vector<A, Isa>::int_type;
  static constexpr int width = Vector<A, Isa>::width;
  /// 32-bit lanes in two registers of 64-bit ones, the even and the odd: a product has the room of two.
  static constexpr int halves = sizeof(A) == 4 ? 2 : 1;
  static constexpr std::uint32_t m0 = PhiloxConstants::multiplier[0], m1 = PhiloxConstants::multiplier[1];
  static constexpr std::uint32_t s0 = PhiloxConstants::step[0], s1 = PhiloxConstants::step[1];

 public:
  MHA_ALWAYS_INLINE DropoutFactors(const std::uint32_t* position, const std::uint32_t* row, const DropoutDraws& draws)
      : key0_(static_cast<std::uint32_t>(draws.seed)),
        key1_(static_cast<std::uint32_t>(draws.seed >> 32)),
        offset_(draws.offset),
        threshold_(draws.threshold),
        scale_(static_cast<A>(draws.scale)) {
    std::uint64_t of_row[std::size_t{8}], of_position[std::size_t{8}], of_both[std::size_t{8}];
    MHA_UNROLL_2
    for (int half = 0; half < halves; ++half) {
      for (int i = 0; i < width / halves; ++i) {
        const std::uint32_t q = position[halves * i + half];
        const std::uint64_t p1 = std::uint64_t{m1} * row[halves * i + half];
        const std::uint64_t p0 = std::uint64_t{m0} * (static_cast<std::uint32_t>(p1 >> 32) ^ q ^ key0_);
        of_row[i] = static_cast<std::uint32_t>(p1) ^ (key0_ + s0);
        of_position[i] = static_cast<std::uint32_t>(p0 >> 32) ^ (key1_ + s1);
        of_both[i] = static_cast<std::uint32_t>(p0);
      }
      load(a_[half], +of_row);
      load(c_[half], +of_position);
      load(d_[half], +of_both);
    }
  }

  /// to[i] = what the weight of key 4 · block + i is multiplied by.
  MHA_ALWAYS_INLINE void of(Index block, A* to) const {
    const std::uint64_t p0 = std::uint64_t{m0} * static_cast<std::uint32_t>(block);
    const std::uint64_t p1 = std::uint64_t{m1} * (static_cast<std::uint32_t>(p0 >> 32) ^ offset_ ^ key1_);
    const Wide zero{}, first = (p1 >> 32) - zero, second = (p1 & 0xffffffffu) - zero, third = (p0 & 0xffffffffu) - zero,
                       by0 = std::uint64_t{m0} - zero, by1 = std::uint64_t{m1} - zero;
    Wide word[std::size_t{halves}][4];
    MHA_UNROLL_2
    for (int half = 0; half < halves; ++half) {
      Wide a = a_[half] ^ first, b = second, c = c_[half] ^ third, d = d_[half];
      std::uint32_t key0 = key0_ + 2 * s0, key1 = key1_ + 2 * s1;
      MHA_UNROLL_8
      for (int round = 2; round < 7; ++round) {
        const Wide k0 = std::uint64_t{key0} - zero, k1 = std::uint64_t{key1} - zero;
        Wide x, y;
        multiply_words<Isa>(x, a, by0);
        multiply_words<Isa>(y, c, by1);
        a = (y >> 32) ^ b ^ k0;
        b = y;
        c = (x >> 32) ^ d ^ k1;
        d = x;
        key0 += s0;
        key1 += s1;
      }
      word[half][0] = a;
      word[half][1] = b;
      word[half][2] = c;
      word[half][3] = d;
    }
    const Int none{}, threshold = typename Vector<A, Isa>::Int{threshold_} - none;
    const V dropped{}, kept = scale_ - dropped;
    MHA_UNROLL_4
    for (int i = 0; i < 4; ++i) {
      Wide bits = word[0][i] & 0xffffffffu;
      if constexpr (halves == 2) bits |= word[1][i] << 32;
      const V factor = Int(bits) >= threshold ? kept : dropped;
      store(to + i * width, factor);
    }
  }

 private:
  std::uint32_t key0_, key1_, offset_, threshold_;
  A scale_;
  Wide a_[std::size_t{halves}], c_[std::size_t{halves}], d_[std::size_t{halves}];
};

/// p (n, count), rows `stride` apart, of keys from `first` on ← p times the factors. count is a whole number of
/// registers.
template <class A> struct DropBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(A* p, std::ptrdiff_t stride, Index n, Index count, Index first, LaneDraws of) {
    if constexpr (Isa::minimal) {  // one after another: little code for a level that few machines run
      for (Index k = first; k < first + n; ++k, p += stride)
        for (Index lane = 0; lane < count; ++lane)
          p[lane] *= static_cast<A>(of.draws.factor(of.row[lane], static_cast<Index>(of.position[lane]), k));
    } else {
      each_register<Isa>(p, stride, n, count, first, of);
    }
  }

 private:
  template <class Isa>
  MHA_ALWAYS_INLINE static void each_register(A* p, std::ptrdiff_t stride, Index n, Index count, Index first,
                                              const LaneDraws& of) {
    using V = vector_t<A, Isa>;
    constexpr int W = Vector<A, Isa>::width;
    for (Index lane = 0; lane < count; lane += W) {
      const DropoutFactors<A, Isa> factors(of.position + lane, of.row + lane, of.draws);
      A factor[std::size_t{4 * W}];
      A* at = p + lane;
      for (Index k = first; k < first + n;) {
        factors.of(k / 4, +factor);
        const Index end = std::min(k / 4 * 4 + 4, first + n);
        for (; k < end; ++k, at += stride) {
          V x, f;
          load(x, at);
          load(f, factor + k % 4 * W);
          x = x * f;
          store(at, x);
        }
      }
    }
  }
};

template <class A>
using DropKernel = void (*)(A* p, std::ptrdiff_t stride, Index n, Index count, Index first, LaneDraws of);
template <class A> DropKernel<A> drop_kernel(IsaLevel level) {
  return with_isa(level, [](auto isa) -> DropKernel<A> { return &decltype(isa)::template run<DropBody<A>>; });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
