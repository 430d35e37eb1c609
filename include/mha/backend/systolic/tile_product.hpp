// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../../core/scalar.hpp"
#include "../simd/isa.hpp"
#include "../simd/vector.hpp"
#include "amx.hpp"
#include "emulation.hpp"
#include "tiles.hpp"
#include "unit.hpp"

namespace mha::inline v0::detail::systolic {

/// c (16·tiles, lanes) = A (16·tiles, 32·steps) · B (32·steps, lanes), or += with `add`: both products of attention,
/// with queries in lanes.
struct TileProduct {
  const bfloat16* a;           ///< step s of tile t at a + t·tile_stride + s·512
  std::ptrdiff_t tile_stride;  ///< in numbers
  const std::uint32_t* b;      ///< (steps, lanes / 16, 16 pairs, 16)
  float* c;
  Index tiles, steps;
  bool add;
};

/// A matrix unit as attention uses it: how many queries lie side by side, and the product.
struct ProductUnit {
  MatrixUnit unit;
  Index lanes;
  void (*multiply)(TileProduct);
};

/// What a unit needs of the calling thread while it multiplies.
class UnitScope {
 public:
#if defined(__x86_64__)
  explicit UnitScope(MatrixUnit unit) {
    if (unit == MatrixUnit::amx) tiles_.emplace();
  }

 private:
  std::optional<amx::TileScope> tiles_;
#else
  explicit UnitScope(MatrixUnit) {}
#endif
};

#if defined(__x86_64__)
/// 2 × 2 tiles of c at a time, in tiles 0–3; A passes through 4 and 5, B through 6 and 7.
struct AmxProduct {
  static constexpr Index lanes = 32;

  static void run(TileProduct p) {
    Index t = 0;
    for (; t + 2 <= p.tiles; t += 2) rows<2>(p, t);
    if (t < p.tiles) rows<1>(p, t);
  }

 private:
  static constexpr std::ptrdiff_t c_stride = lanes * sizeof(float);

  template <int Rows> MHA_ALWAYS_INLINE static void rows(const TileProduct& p, Index t) {
    const bfloat16* a = p.a + t * p.tile_stride;
    const std::uint32_t* b = p.b;
    float* const c = p.c + std::ptrdiff_t{t} * tile_side * lanes;
    if (p.add) {
      amx::load<0>(c, c_stride);
      amx::load<1>(c + tile_side, c_stride);
      if constexpr (Rows == 2) {
        amx::load<2>(c + tile_side * lanes, c_stride);
        amx::load<3>(c + tile_side * lanes + tile_side, c_stride);
      }
    } else {
      amx::zero<0>();
      amx::zero<1>();
      if constexpr (Rows == 2) {
        amx::zero<2>();
        amx::zero<3>();
      }
    }
    for (Index s = 0; s < p.steps; ++s, a += tile_size, b += 2 * tile_words) {
      amx::load<4>(a, amx::row_bytes);
      amx::load<6>(b, amx::row_bytes);
      amx::multiply_add<0, 4, 6>();
      amx::load<7>(b + tile_words, amx::row_bytes);
      amx::multiply_add<1, 4, 7>();
      if constexpr (Rows == 2) {
        amx::load<5>(a + p.tile_stride, amx::row_bytes);
        amx::multiply_add<2, 5, 6>();
        amx::multiply_add<3, 5, 7>();
      }
    }
    amx::store<0>(c, c_stride);
    amx::store<1>(c + tile_side, c_stride);
    if constexpr (Rows == 2) {
      amx::store<2>(c + tile_side * lanes, c_stride);
      amx::store<3>(c + tile_side * lanes + tile_side, c_stride);
    }
  }
};

/// Eight rows × three registers of queries: a pair of A is broadcast, three of B lie in lanes.
struct DotProduct {
  static constexpr Index lanes = 48;

  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(TileProduct p) {
    for (Index t = 0; t < p.tiles; ++t)
      for (Index half = 0; half < 2; ++half) eight_rows(p, t, 8 * half);
  }

 private:
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void eight_rows(const TileProduct& p, Index t, Index first) {
    typedef float V __attribute__((vector_size(64)));
    typedef std::uint32_t I __attribute__((vector_size(64)));
    constexpr int rows = 8, columns = 3;
    const std::uint32_t* a =
        reinterpret_cast<const std::uint32_t*>(p.a + t * p.tile_stride) + std::ptrdiff_t{first} * tile_side;
    const std::uint32_t* b = p.b;
    float* const c = p.c + (std::ptrdiff_t{t} * tile_side + first) * lanes;
    V sum[rows][columns];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) {
        sum[i][j] = V{};
        if (p.add) simd::load(sum[i][j], c + i * lanes + j * tile_side);
      }
    for (Index s = 0; s < p.steps; ++s, a += tile_words, b += columns * tile_words)
      for (Index pair = 0; pair < tile_side; ++pair) {
        I right[columns];
#pragma GCC unroll 4
        for (int j = 0; j < columns; ++j) simd::load(right[j], b + j * tile_words + pair * tile_side);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
          I left;
          asm("vpbroadcastd %1, %0" : "=v"(left) : "m"(a[i * tile_side + pair]));
#pragma GCC unroll 4
          for (int j = 0; j < columns; ++j) add_dot_products(sum[i][j], left, right[j]);
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) simd::store(c + i * lanes + j * tile_side, sum[i][j]);
  }
};
#endif

/// Vector code of any processor: per 32 of the depth one chain from 0, then added to c.
struct PortableProduct {
  static constexpr Index lanes = 32;

  template <class Isa> MHA_ALWAYS_INLINE static void run(TileProduct p) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width, rows = 4;
    for (Index t = 0; t < p.tiles; ++t)
      for (Index first = 0; first < tile_side; first += rows)
        for (Index lane = 0; lane < lanes; lane += W) {
          const bfloat16* a = p.a + t * p.tile_stride + std::ptrdiff_t{first} * tile_depth;
          const std::uint32_t* b = p.b + lane / tile_side * tile_words + lane % tile_side;
          float* const c = p.c + (std::ptrdiff_t{t} * tile_side + first) * lanes + lane;
          V sum[std::size_t{rows}];
#pragma GCC unroll 4
          for (int i = 0; i < rows; ++i) {
            sum[i] = V{};
            if (p.add) simd::load(sum[i], c + i * lanes);
          }
          for (Index s = 0; s < p.steps; ++s, a += tile_size, b += lanes / tile_side * tile_words) {
            V chain[std::size_t{rows}];
#pragma GCC unroll 4
            for (int i = 0; i < rows; ++i) chain[i] = V{};
            for (Index pair = 0; pair < tile_side; ++pair) {
              I words;
              simd::load(words, b + pair * tile_side);
              const V even = (V)(words << 16), odd = (V)(words & 0xffff0000u);
#pragma GCC unroll 4
              for (int i = 0; i < rows; ++i) {
                V left;
                simd::broadcast(left, static_cast<float>(a[i * tile_depth + 2 * pair]));
                simd::multiply_add<false>(chain[i], left, even);
                simd::broadcast(left, static_cast<float>(a[i * tile_depth + 2 * pair + 1]));
                simd::multiply_add<false>(chain[i], left, odd);
              }
            }
#pragma GCC unroll 4
            for (int i = 0; i < rows; ++i) sum[i] = sum[i] + chain[i];
          }
#pragma GCC unroll 4
          for (int i = 0; i < rows; ++i) simd::store(c + i * lanes, sum[i]);
        }
  }
};

/// The oracle: a tile at a time through the emulated array.
template <SumOrder Order> struct EmulatedProduct {
  static constexpr Index lanes = 32;

  static void run(TileProduct p) {
    EmulatedArray<AmxArray> array(Order);
    for (Index t = 0; t < p.tiles; ++t)
      for (Index column = 0; column < lanes / tile_side; ++column) {
        const TensorView<float, 2> c{
            p.c + std::ptrdiff_t{t} * tile_side * lanes + column * tile_side, {tile_side, tile_side}, {lanes, 1}};
        if (!p.add)
          for (Index i = 0; i < tile_side; ++i)
            for (Index j = 0; j < tile_side; ++j) c(i, j) = 0.f;
        for (Index s = 0; s < p.steps; ++s) {
          bfloat16 b[tile_size];  // (32, 16)
          const std::uint32_t* const words = p.b + (s * (lanes / tile_side) + column) * tile_words;
          for (Index k = 0; k < tile_depth; ++k)
            for (Index j = 0; j < tile_side; ++j)
              b[k * tile_side + j] =
                  bfloat16::from_bits(static_cast<std::uint16_t>(words[k / 2 * tile_side + j] >> (k % 2 * 16)));
          array.multiply(
              {p.a + t * p.tile_stride + std::ptrdiff_t{s} * tile_size, {tile_side, tile_depth}, {tile_depth, 1}},
              {b, {tile_depth, tile_side}, {tile_side, 1}}, c);
        }
      }
  }
};

/// A unit of this machine, its vector code at the given level.
inline ProductUnit product_unit(MatrixUnit unit, IsaLevel level) {
#if defined(__x86_64__)
  if (unit == MatrixUnit::amx) return {unit, AmxProduct::lanes, &AmxProduct::run};
  if (unit == MatrixUnit::dot_product) return {unit, DotProduct::lanes, &Avx512Bf16::run<DotProduct, TileProduct>};
#endif
  return simd::with_isa(level, [&](auto isa) {
    return ProductUnit{unit, PortableProduct::lanes, &decltype(isa)::template run<PortableProduct, TileProduct>};
  });
}

/// The emulation of a unit's order of additions.
inline ProductUnit emulated_unit(SumOrder order) {
  constexpr MatrixUnit portable = MatrixUnit::portable;
  if (order == SumOrder::split_chains) return {portable, 32, &EmulatedProduct<SumOrder::split_chains>::run};
  if (order == SumOrder::pairs) return {portable, 32, &EmulatedProduct<SumOrder::pairs>::run};
  return {portable, 32, &EmulatedProduct<SumOrder::chained>::run};
}

}  // namespace mha::inline v0::detail::systolic
