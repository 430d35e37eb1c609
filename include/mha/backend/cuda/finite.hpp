// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine.hpp"

/// Numbers of 16 bits that are not finite: 0 · NaN is NaN, so that a hidden key must not meet such a value.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Two numbers of T in a word, the first in the lower half.
template <class T> struct PairBits {
  static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, half>);
  static constexpr std::uint32_t infinity = std::is_same_v<T, bfloat16> ? 0x7f80u : 0x7c00u;
  static constexpr std::uint32_t one = std::is_same_v<T, bfloat16> ? 0x3f80u : 0x3c00u;

  MHA_KERNEL static bool are_finite(std::uint32_t pair) {
    return (pair & infinity) != infinity && (pair >> 16 & infinity) != infinity;
  }
  /// 1 where the flag is set, else 0.
  MHA_KERNEL static std::uint32_t ones(bool first, bool second) {
    return (first ? one : 0u) | (second ? one << 16 : 0u);
  }

  struct Parts {
    std::uint32_t finite;  ///< the numbers, 0 in place of those that are not finite
    std::uint32_t above;   ///< 1 where they are NaN or ∞
    std::uint32_t below;   ///< 1 where they are NaN or −∞
  };
  MHA_KERNEL static Parts parts(std::uint32_t pair) {
    Parts p{0, 0, 0};
    MHA_UNROLL for (int shift = 0; shift < 32; shift += 16) {
      const std::uint32_t x = pair >> shift & 0xffffu, magnitude = x & 0x7fffu;
      const bool nan = magnitude > infinity;
      if (magnitude < infinity) p.finite |= x << shift;
      if (nan || x == infinity) p.above |= one << shift;
      if (nan || (magnitude == infinity && x != magnitude)) p.below |= one << shift;
    }
    return p;
  }
};

/// Whether all numbers of T in `bytes` bytes of shared memory are finite, which the lanes of a warp find out together.
template <class T, class Machine> MHA_KERNEL bool all_finite(Machine& m, Shared from, Shared bytes) {
  bool finite = true;
  MHA_ROLL for (Shared at = m.thread() % warp_size * 16; at < bytes; at += warp_size * 16) {
    const Chunk chunk = m.template load<Chunk>(from + at);
    MHA_UNROLL for (int w = 0; w < 4; ++w) finite = finite && PairBits<T>::are_finite(chunk.word[w]);
  }
  return m.all(finite);
}

/// out += a b, m16n8k16, where `seen` is 1 at the pairs of a that are visible and 0 at the others, for which a is 0.
///
/// Numbers of b that are not finite are left out of the product and counted in two others, of visibility · (NaN or ∞)
/// and of visibility · (NaN or −∞): an element that met one gets the infinity, or both. All others have the bits that
/// they would have if b were finite.
template <class T, class Machine>
MHA_KERNEL void multiply_seen(Machine& m, float (&out)[4], const std::uint32_t (&a)[4], const std::uint32_t (&seen)[4],
                              std::uint32_t b0, std::uint32_t b1) {
  const auto first = PairBits<T>::parts(b0), second = PairBits<T>::parts(b1);
  float up[4] = {}, down[4] = {};
  m.template mma_m16n8k16<T>(out, a, first.finite, second.finite);
  m.template mma_m16n8k16<T>(up, seen, first.above, second.above);
  m.template mma_m16n8k16<T>(down, seen, first.below, second.below);
  MHA_UNROLL for (int e = 0; e < 4; ++e) {
    if (up[e] > 0) out[e] += -minus_infinity<float>();
    if (down[e] > 0) out[e] += minus_infinity<float>();
  }
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
