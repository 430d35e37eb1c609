// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What Philox4x32 multiplies by, and what it adds to the two words of its key from round to round.
struct PhiloxConstants {
  static constexpr std::uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
  static constexpr std::uint32_t step[2] = {0x9E3779B9u, 0xBB67AE85u};
};

/// A counter of Philox4x32, or the bits that it makes of one.
struct PhiloxWords {
  std::uint32_t word[4];
  friend constexpr bool operator==(const PhiloxWords&, const PhiloxWords&) = default;
};

/// 128 random bits of a counter and a key: the same ones on every machine, in any order.
///
/// Numerics  7 rounds pass BigCrush, 10 are the authors' safety margin
/// Source    Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, §3.3
template <int Rounds = 7> MHA_HOST_DEVICE constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint64_t key) {
  constexpr std::uint32_t m0 = PhiloxConstants::multiplier[0], m1 = PhiloxConstants::multiplier[1];
  constexpr std::uint32_t s0 = PhiloxConstants::step[0], s1 = PhiloxConstants::step[1];
  std::uint32_t a = counter.word[0], b = counter.word[1], c = counter.word[2], d = counter.word[3];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < Rounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{m0} * a, p1 = std::uint64_t{m1} * c;
    a = static_cast<std::uint32_t>(p1 >> 32) ^ b ^ k0;
    b = static_cast<std::uint32_t>(p1);
    c = static_cast<std::uint32_t>(p0 >> 32) ^ d ^ k1;
    d = static_cast<std::uint32_t>(p0);
    k0 += s0;
    k1 += s1;
  }
  return {{a, b, c, d}};
}

}  // namespace mha::inline MHA_NAMESPACE
