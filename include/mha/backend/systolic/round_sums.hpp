// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../simd/isa.hpp"
#include "../simd/vector.hpp"
#include "../simd/widen.hpp"
#include "pack.hpp"
#include "tiles.hpp"
#include "unit.hpp"

/// From the sums of a dense product, in blocks of 32 × 32 floats, to its results.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// to (rows, columns) = sums + bias + residual, rounded to T, row by row: memory takes runs of some lines twice as fast
/// as a line of each row. Columns are a multiple of 32; sums are blocks (rows, 32), block_stride apart.
template <class T> struct RoundArgs {
  const float* sums;
  const float* bias;  ///< (columns); null for none
  T* to;
  std::ptrdiff_t stride;  ///< of rows of `to`
  Index rows, columns = block_side;
  std::ptrdiff_t block_stride = 0;
  const T* residual = nullptr;  ///< rows residual_stride apart; null for none
  std::ptrdiff_t residual_stride = 0;
};
template <class T> using RoundKernel = void (*)(RoundArgs<T>);

template <class T> struct RoundSums {
  template <class Isa> MHA_ALWAYS_INLINE static void run(RoundArgs<T> p) {
    using V = simd::vector_t<float, Isa>;
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index r = 0; r < p.rows; ++r)
      for (Index j = 0; j < p.columns; j += W) {
        T* const to = p.to + r * p.stride;
        V x, y;
        simd::load(x, p.sums + j / block_side * p.block_stride + r * block_side + j % block_side);
        if (p.bias != nullptr) {
          simd::load(y, p.bias + j);
          x = x + y;
        }
        if (p.residual != nullptr) {
          simd::load_widened<float, Isa>(y, p.residual + r * p.residual_stride + j);
          x = x + y;
        }
        if constexpr (std::is_same_v<T, float>) {
          simd::store(to + j, x);
        } else if constexpr (std::is_same_v<T, bfloat16>) {
          store_nearest<Isa>(x, to + j);
        } else {
          float wide[std::size_t{W}];
          simd::store(+wide, x);
          for (int i = 0; i < W; ++i) to[j + i] = static_cast<T>(wide[i]);
        }
      }
  }
};

#if defined(__x86_64__)
/// The same by the instruction that rounds to bfloat16, a quarter of the time: what is below the normal range becomes
/// zero, as it does in the products of the units that have it.
struct RoundSumsToBfloat16 {
  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(RoundArgs<bfloat16> p) {
    typedef float V __attribute__((vector_size(64)));
    for (Index r = 0; r < p.rows; ++r) {
      const float* sums = p.sums + r * block_side;
      const bfloat16* const residual = p.residual == nullptr ? nullptr : p.residual + r * p.residual_stride;
      bfloat16* const to = p.to + r * p.stride;
      for (Index j = 0; j < p.columns; j += block_side, sums += p.block_stride) {
        V x, y, more;
        simd::load(x, sums);
        simd::load(y, sums + tile_side);
        if (p.bias != nullptr) {
          simd::load(more, p.bias + j);
          x = x + more;
          simd::load(more, p.bias + j + tile_side);
          y = y + more;
        }
        if (residual != nullptr) {
          simd::load_widened<float, Isa>(more, residual + j);
          x = x + more;
          simd::load_widened<float, Isa>(more, residual + j + tile_side);
          y = y + more;
        }
        constexpr Index ahead = 8;  // rows
        fetch_to_write(to + j, ahead * p.stride);
        simd::vector_t<std::uint16_t, Avx512Bf16> both;
        narrow(x, y, both);
        std::memcpy(static_cast<void*>(to + j), &both, sizeof both);
      }
    }
  }

 private:
  /// Prefetches a line that is written soon. Behind the last row the address may be invalid: a prefetch does not fault.
  MHA_ALWAYS_INLINE static void fetch_to_write(const bfloat16* to, std::ptrdiff_t ahead) {
    const auto line = reinterpret_cast<std::uintptr_t>(to) + static_cast<std::uintptr_t>(ahead) * sizeof(bfloat16);
    asm volatile("prefetchw (%0)" : : "r"(line));
  }
};
#endif

/// Whether sums of a unit that are below the normal range of a bfloat16 become zero where they are rounded to one.
inline bool flushes_bfloat16(MatrixUnit unit, IsaLevel level) {
  return unit != MatrixUnit::portable && rounds_to_bfloat16(level);
}

/// What rounds the sums of a unit.
template <class T> RoundKernel<T> round_kernel(MatrixUnit unit, IsaLevel level) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, bfloat16>)
    if (flushes_bfloat16(unit, level)) return &Avx512Bf16::run<RoundSumsToBfloat16, RoundArgs<T>>;
#endif
  static_cast<void>(unit);
  return simd::with_isa(
      level, [](auto isa) -> RoundKernel<T> { return &decltype(isa)::template run<RoundSums<T>, RoundArgs<T>>; });
}

/// simd::NarrowBody with the bits of RoundSumsToBfloat16.
struct FlushAndNarrow {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(const float* from, std::ptrdiff_t stride, Index n, Index dim, bfloat16* to,
                                    std::ptrdiff_t to_stride) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr Index W = simd::Vector<float, Isa>::width;
    constexpr std::uint32_t exponent = 0x7f800000u, sign = 0x80000000u;
    for (Index i = 0; i < n; ++i, from += stride, to += to_stride) {
      Index d = 0;
      for (; d + W <= dim; d += W) {
        V x;
        simd::load(x, from + d);
        const I bits = I(x), below = I((bits & exponent) == 0u);
        store_nearest<Isa>(V(bits & (~below | sign)), to + d);
      }
      for (; d < dim; ++d) {
        const auto bits = std::bit_cast<std::uint32_t>(from[d]);
        to[d] = bfloat16(std::bit_cast<float>((bits & exponent) == 0 ? bits & sign : bits));
      }
    }
  }
};
/// What rounds sums that were kept as round_kernel() does.
template <class T> simd::NarrowKernel<float, T> narrow_kernel(MatrixUnit unit, IsaLevel level) {
  if constexpr (std::is_same_v<T, bfloat16>)
    if (flushes_bfloat16(unit, level))
      return simd::with_isa(level, [](auto isa) -> simd::NarrowKernel<float, T> {
        return &decltype(isa)::template run<FlushAndNarrow, const float*, std::ptrdiff_t, Index, Index, T*,
                                            std::ptrdiff_t>;
      });
  return simd::narrow_kernel<float, T>(level);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
