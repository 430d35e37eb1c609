// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The numbers of std::mt19937_64, without <random>, which is most of what a header that draws weights would read.
///
/// Source    Nishimura 2000, Tables of 64-bit Mersenne twisters; ISO C++ [rand.eng.mers]
class Mersenne64 {
 public:
  explicit constexpr Mersenne64(std::uint64_t seed) {
    state_[0] = seed;
    for (std::size_t i = 1; i < size; ++i)
      state_[i] = 6364136223846793005u * (state_[i - 1] ^ (state_[i - 1] >> 62)) + i;
  }

  constexpr std::uint64_t operator()() {
    if (next_ == size) twist();
    std::uint64_t x = state_[next_++];
    x ^= (x >> 29) & 0x5555555555555555u;
    x ^= (x << 17) & 0x71d67fffeda60000u;
    x ^= (x << 37) & 0xfff7eee000000000u;
    return x ^ (x >> 43);
  }

 private:
  static constexpr std::size_t size = 312, shift = 156;

  constexpr void twist() {
    constexpr std::uint64_t low = 0x7fffffff;
    std::size_t after = 1, far = shift;
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint64_t y = (state_[i] & ~low) | (state_[after] & low);
      state_[i] = state_[far] ^ (y >> 1) ^ ((y & 1) != 0 ? 0xb5026f5aa96619e9u : 0);
      after = after + 1 == size ? 0 : after + 1;
      far = far + 1 == size ? 0 : far + 1;
    }
    next_ = 0;
  }

  std::uint64_t state_[size] = {};
  std::size_t next_ = size;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
