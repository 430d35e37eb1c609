// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine.hpp"

/// Numbers of 16 bits that are not finite: 0 · NaN is NaN, so that a hidden key must not meet such a value.
namespace mha::inline v0::cuda {

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

}  // namespace mha::inline v0::cuda
