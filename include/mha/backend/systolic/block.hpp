// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../simd/isa.hpp"
#include "../simd/product_kernel.hpp"
#include "../simd/vector.hpp"
#include "amx.hpp"
#include "array.hpp"
#include "pack.hpp"
#include "unit.hpp"

/// One block of a product, 32 × 32 sums over some of the depth, on each unit. A unit has
///   Scope                  what a worker holds while it multiplies
///   run(BlockProduct)      c += a · b
namespace mha::inline v0::detail::systolic {

/// c (32, 32) = [c +] a (32, 32 · depth_tiles) · b (32 · depth_tiles, 32), operands packed (pack.hpp). Only the first
/// row_tiles · 16 rows are wanted.
struct BlockProduct {
  const bfloat16* a;
  const bfloat16* b;
  float* c;
  Index row_tiles, depth_tiles;
  bool add;
};

/// Floats of a block of sums.
inline constexpr Index sums_size = block_side * block_side;

#if defined(__x86_64__)
/// Four tiles of sums, two of rows and two of columns: each operand tile loaded is multiplied twice.
struct AmxUnit {
  static constexpr MatrixUnit unit = MatrixUnit::amx;
  using Scope = amx::TileScope;

  static void run(const BlockProduct& p) {
    if (p.row_tiles == 2)
      multiply<true>(p);
    else
      multiply<false>(p);
  }

 private:
  static constexpr std::ptrdiff_t operand_stride = amx::row_bytes, sum_stride = block_side * sizeof(float);

  template <bool Both> static void multiply(const BlockProduct& p) {
    float* const low = p.c + tile_side * block_side;
    if (p.add) {
      amx::load<0>(p.c, sum_stride);
      amx::load<1>(p.c + tile_side, sum_stride);
      if constexpr (Both) {
        amx::load<2>(low, sum_stride);
        amx::load<3>(low + tile_side, sum_stride);
      }
    } else {
      amx::zero<0>();
      amx::zero<1>();
      if constexpr (Both) {
        amx::zero<2>();
        amx::zero<3>();
      }
    }
    const bfloat16 *a = p.a, *b = p.b;
    for (Index k = 0; k < p.depth_tiles; ++k, a += block_size, b += block_size) {
      amx::load<4>(a, operand_stride);
      amx::load<6>(b, operand_stride);
      amx::multiply_add<0, 4, 6>();
      amx::load<7>(b + tile_size, operand_stride);
      amx::multiply_add<1, 4, 7>();
      if constexpr (Both) {
        amx::load<5>(a + tile_size, operand_stride);
        amx::multiply_add<2, 5, 6>();
        amx::multiply_add<3, 5, 7>();
      }
    }
    amx::store<0>(p.c, sum_stride);
    amx::store<1>(p.c + tile_side, sum_stride);
    if constexpr (Both) {
      amx::store<2>(low, sum_stride);
      amx::store<3>(low + tile_side, sum_stride);
    }
  }
};

/// Eight rows of 32 columns in 16 registers.
struct DotProductBody {
  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(const BlockProduct* p) {
    for (Index i = 0; i < p->row_tiles * tile_side; i += rows) some_rows<Isa>(*p, i);
  }

 private:
  static constexpr Index rows = 8;

  template <class Isa>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void some_rows(const BlockProduct& p, Index first) {
    using V = simd::vector_t<float, Isa>;
    using Pairs = typename simd::Vector<float, Isa>::int_type;
    const bfloat16* a = p.a + (first / tile_side) * tile_size + (first % tile_side) * tile_depth;
    const bfloat16* b = p.b;
    float* const c = p.c + first * block_side;
    V sum[std::size_t{rows}][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        sum[i][j] = V{};
        if (p.add) simd::load(sum[i][j], c + i * block_side + j * tile_side);
      }
    for (Index k = 0; k < p.depth_tiles; ++k, a += block_size, b += block_size)
      for (Index pair = 0; pair < tile_side; ++pair) {
        Pairs column[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) load_pairs(column[j], b + j * tile_size + pair * tile_depth);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
          Pairs row;
          broadcast_pair(row, a + i * tile_depth + 2 * pair);
#pragma GCC unroll 2
          for (int j = 0; j < 2; ++j) add_dot_products(sum[i][j], row, column[j]);
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) simd::store(c + i * block_side + j * tile_side, sum[i][j]);
  }

  template <class Pairs> MHA_ALWAYS_INLINE static void load_pairs(Pairs& to, const bfloat16* from) {
    std::memcpy(&to, from, sizeof to);
  }
  template <class Pairs> MHA_ALWAYS_INLINE static void broadcast_pair(Pairs& to, const bfloat16* from) {
    std::uint32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    simd::broadcast(to, pair);
  }
};

struct DotProductUnit {
  static constexpr MatrixUnit unit = MatrixUnit::dot_product;
  struct Scope {};
  static void run(const BlockProduct& p) { Avx512Bf16::run<DotProductBody>(&p); }
};
#endif

/// Operands widened to float, a few passes of an array of this depth at a time, then the float kernel.
///
/// Numerics  SumOrder::chained. Products of bfloat16 are exact in float, so that an unfused multiply-add, all that some
///           processors and unoptimised builds have, gives the same bits unless a product leaves the normal range
template <Index Depth> struct PortableBody {
  static_assert(Depth % tile_depth == 0,
                "mha: the portable unit runs arrays whose depth is a multiple of 32, as packed tiles are: use "
                "EmulatedArray for others (see mha/backend/systolic/emulation.hpp)");

  template <class Isa> MHA_ALWAYS_INLINE static void run(const BlockProduct* p) {
    constexpr int W = simd::Vector<float, Isa>::width;
    constexpr int vectors = Isa::registers == 32 ? 2 : W == 8 ? 2 : 4;
    constexpr int rows = Isa::registers == 32 ? 8 : W == 8 ? 4 : 2;
    constexpr Index at_once = Depth / tile_depth;
    constexpr std::size_t size = std::size_t{block_side} * std::size_t{Depth};
    alignas(64) float a[size], b[size];
    for (Index k = 0; k < p->depth_tiles; k += at_once) {
      const Index tiles = std::min(at_once, p->depth_tiles - k);
      for (Index t = 0; t < tiles; ++t) {
        widen_rows<Isa>(p->a + (k + t) * block_size, p->row_tiles, a + t * tile_depth);
        widen_pairs<Isa>(p->b + (k + t) * block_size, b + t * tile_depth * block_side);
      }
      for (Index j = 0; j < block_side; j += vectors * W)
        simd::ProductBody<float, rows, vectors>::template run<Isa>({a, Depth, b + j, block_side, p->c + j, block_side,
                                                                    p->row_tiles * tile_side, tiles * tile_depth,
                                                                    p->add || k > 0});
    }
  }

 private:
  template <class Isa> MHA_ALWAYS_INLINE static void widen_rows(const bfloat16* from, Index row_tiles, float* to) {
    for (Index r = 0; r < row_tiles * tile_side; ++r)
      for (Index d = 0; d < tile_depth; ++d) to[r * Depth + d] = static_cast<float>(from[r * tile_depth + d]);
  }

  /// Pairs of k → two rows of 32 columns.
  template <class Isa> MHA_ALWAYS_INLINE static void widen_pairs(const bfloat16* from, float* to) {
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index pair = 0; pair < tile_side; ++pair, to += 2 * block_side)
      for (Index j = 0; j < block_side; j += W) {
        I pairs;
        std::memcpy(&pairs, from + (j / tile_side) * tile_size + pair * tile_depth + 2 * (j % tile_side), sizeof pairs);
        simd::store(to + j, (simd::vector_t<float, Isa>)(pairs << 16));
        simd::store(to + block_side + j, (simd::vector_t<float, Isa>)(pairs & 0xffff0000u));
      }
  }
};

template <class Array> struct PortableUnit {
  static constexpr MatrixUnit unit = MatrixUnit::portable;
  struct Scope {};
  static void run(const BlockProduct& p) {
    simd::with_isa(current_isa(), [&](auto isa) { isa.template run<PortableBody<Array::depth>>(&p); });
  }
};

/// The unit that runs an array of this shape: hardware has one shape, all others are emulated.
template <class Array> MatrixUnit unit_for() {
  return std::is_same_v<Array, AmxArray> ? current_unit() : MatrixUnit::portable;
}

/// f(unit) for the unit that runs an array of this shape.
template <class Array, class F> auto with_unit(F&& f) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Array, AmxArray>) {
    if (current_unit() == MatrixUnit::amx) return f(AmxUnit{});
    if (current_unit() == MatrixUnit::dot_product) return f(DotProductUnit{});
  }
#endif
  return f(PortableUnit<Array>{});
}

}  // namespace mha::inline v0::detail::systolic
