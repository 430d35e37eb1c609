// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.hpp"
#include "vector.hpp"

namespace mha::inline v0::detail::simd {

/// to (16, 16) = fromᵀ (16, 16) of 32-bit words; the strides are in words.
template <class Isa>
MHA_ALWAYS_INLINE void transpose16(const std::uint32_t* from, std::ptrdiff_t from_stride, std::uint32_t* to,
                                   std::ptrdiff_t to_stride) {
  if constexpr (Isa::register_bytes == 64) {
    typedef std::uint32_t V __attribute__((vector_size(64)));
    V a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) load(a[i], from + i * from_stride);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
      b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
      b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const V &x = b[i + j], &y = b[i + j + 2];
        a[i + 2 * j] = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        a[i + 2 * j + 1] = __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
      }
      // a[4r + c] holds, in its four quarters q, column 4q + c of rows 4r … 4r + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const V low = __builtin_shufflevector(a[c], a[4 + c], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      const V high =
          __builtin_shufflevector(a[c], a[4 + c], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
      const V low2 =
          __builtin_shufflevector(a[8 + c], a[12 + c], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      const V high2 =
          __builtin_shufflevector(a[8 + c], a[12 + c], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
      b[c] = __builtin_shufflevector(low, low2, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      b[8 + c] = __builtin_shufflevector(low, low2, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
      b[4 + c] = __builtin_shufflevector(high, high2, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      b[12 + c] = __builtin_shufflevector(high, high2, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(to + i * to_stride, b[i]);
  } else {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 16; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

}  // namespace mha::inline v0::detail::simd
