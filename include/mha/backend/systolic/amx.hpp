// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../config.hpp"

#if defined(__x86_64__)

/// Intel AMX, an instruction a function. The instructions are spelled in assembly, so that they compile without flags
/// and say what they touch: the compilers' own wrappers understate the memory that tiles read and write. Ask unit.hpp
/// first whether this machine has the unit and lets this process use it.
namespace mha::inline MHA_NAMESPACE::detail::systolic::amx {

/// Rows of a tile, and bytes of a row.
inline constexpr int tile_rows = 16, row_bytes = 64;

/// The shapes of the eight tiles, as ldtilecfg reads them.
struct alignas(64) TileConfig {
  std::uint8_t palette = 0, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};

  /// Eight tiles of 16 rows of 64 bytes.
  static constexpr TileConfig full() {
    TileConfig config;
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes[tile] = row_bytes;
      config.rows[tile] = tile_rows;
    }
    return config;
  }
};
static_assert(sizeof(TileConfig) == 64);

/// The calling thread's tiles in full shape while it lives; then what the caller had, or none. Tile contents of the
/// caller's are not kept: the calling convention makes them its own to save.
class TileScope {
 public:
  explicit TileScope(const TileConfig& config = TileConfig::full()) {
    asm volatile("sttilecfg %0" : "=m"(before_) : : "memory");
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  ~TileScope() {
    if (before_.palette != 0)
      asm volatile("ldtilecfg %0" : : "m"(before_) : "memory");
    else
      asm volatile("tilerelease" : : : "memory");
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  TileConfig before_;
};

template <int Tile> MHA_ALWAYS_INLINE void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(Tile)); }

/// Rows at from, from + stride, … ; the stride is in bytes.
template <int Tile> MHA_ALWAYS_INLINE void load(const void* from, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}

/// The same, with the hint that the first-level cache need not keep it.
template <int Tile> MHA_ALWAYS_INLINE void load_once(const void* from, std::ptrdiff_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile> MHA_ALWAYS_INLINE void store(void* to, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}

/// C (16, 16) += A (16, 32) · B (32, 16): bfloat16 operands, A by rows, B in pairs along the depth (16, 16, 2), float
/// C.
template <int C, int A, int B> MHA_ALWAYS_INLINE void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic::amx

#endif
