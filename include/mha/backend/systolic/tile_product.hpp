// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../config.hpp"
#include "../../core/scalar.hpp"
#include "../simd/isa.hpp"
#include "../simd/product_kernel.hpp"
#include "../simd/vector.hpp"
#include "amx.hpp"
#include "emulation.hpp"
#include "product_unit.hpp"
#include "tiles.hpp"
#include "unit.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

#if defined(__x86_64__)
/// 2 × 2 tiles of c at a time, in tiles 0–3; A passes through 4 and 5, B through 6 and 7.
struct AmxProduct {
  static constexpr Index lanes = 32;

  static void run(const TileProduct& p) {
    if (p.passes_by)
      run<0, true>(p);
    else if (p.steps == 2)
      run<2, false>(p);
    else if (p.steps == 4)
      run<4, false>(p);
    else if (p.steps == 8)
      run<8, false>(p);
    else
      run<0, false>(p);
  }

  /// Between products the tiles hold nothing.
  static void stay_awake() { amx::multiply_add<0, 4, 6>(); }

 private:
  /// The usual depths unrolled, 0 for any.
  template <Index Steps, bool Once> MHA_ALWAYS_INLINE static void run(const TileProduct& given) {
    TileProduct p = given;
    if constexpr (Steps != 0) p.steps = Steps;
    const Index pairs = p.tiles / 2;
    if (pairs > 0) first_operands<2, Once>(p, 0);
    for (Index i = 0; i < pairs; ++i) rows<2, Once>(p, 2 * i, i + 1 < pairs);
    if (p.tiles % 2 != 0) {
      first_operands<1, Once>(p, p.tiles - 1);
      rows<1, Once>(p, p.tiles - 1, false);
    }
  }

  static constexpr std::ptrdiff_t c_stride = lanes * sizeof(float);
  static std::ptrdiff_t a_stride(const TileProduct& p) { return p.row_stride * std::ptrdiff_t{sizeof(bfloat16)}; }

  template <int Tile, bool Once> MHA_ALWAYS_INLINE static void load_a(const bfloat16* a, const TileProduct& p) {
    if constexpr (Once)
      amx::load_once<Tile>(a, a_stride(p));
    else
      amx::load<Tile>(a, a_stride(p));
  }

  /// Asks for lines that the second-level cache is to have soon.
  MHA_ALWAYS_INLINE static void fetch(std::uintptr_t& line) {
    constexpr std::uintptr_t line_bytes = 64;
    MHA_UNROLL_4
    for (Index i = 0; i < next_lines; ++i, line += line_bytes)
      __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
  }

  template <int Rows, bool Once> MHA_ALWAYS_INLINE static void first_operands(const TileProduct& p, Index t) {
    const bfloat16* const a = p.a + t * p.tile_stride;
    load_a<4, Once>(a, p);
    amx::load<6>(p.b, amx::row_bytes);
    amx::load<7>(p.b + tile_words, amx::row_bytes);
    if constexpr (Rows == 2) load_a<5, Once>(a + p.tile_stride, p);
  }

  /// Two rows of tiles from t on, whose first operands are loaded; with `more` it leaves those of the next two, which
  /// would otherwise wait for the stores.
  template <int Rows, bool Once> MHA_ALWAYS_INLINE static void rows(const TileProduct& p, Index t, bool more) {
    const bfloat16* a = p.a + t * p.tile_stride;
    const std::uint32_t* b = p.b;
    std::uintptr_t next = p.next;
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
    amx::multiply_add<0, 4, 6>();
    amx::multiply_add<1, 4, 7>();
    if constexpr (Rows == 2) {
      amx::multiply_add<2, 5, 6>();
      amx::multiply_add<3, 5, 7>();
    }
    MHA_UNROLL_8
    for (Index s = 1; s < p.steps; ++s) {
      a += p.step_stride;
      b += 2 * tile_words;
      load_a<4, Once>(a, p);
      amx::load<6>(b, amx::row_bytes);
      amx::multiply_add<0, 4, 6>();
      if constexpr (Once) fetch(next);
      amx::load<7>(b + tile_words, amx::row_bytes);
      amx::multiply_add<1, 4, 7>();
      if constexpr (Rows == 2) {
        load_a<5, Once>(a + p.tile_stride, p);
        amx::multiply_add<2, 5, 6>();
        amx::multiply_add<3, 5, 7>();
      }
    }
    if (more) first_operands<Rows, Once>(p, t + Rows);
    amx::store<0>(c, c_stride);
    amx::store<1>(c + tile_side, c_stride);
    if constexpr (Rows == 2) {
      amx::store<2>(c + tile_side * lanes, c_stride);
      amx::store<3>(c + tile_side * lanes + tile_side, c_stride);
    }
  }
};

/// At most eight rows × some registers of columns, sixteen of one register, which take as many chains to hide the
/// latency of a dot product: a pair of A is broadcast, pairs of B lie in lanes. Rows that are not wanted are neither
/// read nor written.
template <int Columns> struct DotProduct {
  static constexpr Index lanes = Columns * tile_side;

  template <class Isa> MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void run(const TileProduct& p) {
    for (Index t = 0; t < p.tiles; ++t) {
      const Index wanted = std::min(tile_side, p.rows - t * tile_side);
      if constexpr (Columns == 1)
        if (wanted == tile_side) {
          some_rows<int{tile_side}>(p, t, 0);
          continue;
        }
      for (Index first = 0; first < wanted; first += 8) at_most<8>(p, t, first, wanted - first);
    }
  }

 private:
  /// A count of rows each has its own loop: with 1 of 8 wanted, 7 of 8 dot products would be for nothing.
  template <int Rows>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void at_most(const TileProduct& p, Index t, Index first,
                                                               Index wanted) {
    if constexpr (Rows > 1)
      if (wanted < Rows) return at_most<Rows - 1>(p, t, first, wanted);
    some_rows<Rows>(p, t, first);
  }

  /// Asks for these lines of the step after next, one after the other: products read tiles of B side by side, in an
  /// order that processors do not foresee. Behind the last step lies the next block of columns.
  template <int Lines> MHA_ALWAYS_INLINE static void fetch(const std::uint32_t* line) {
    constexpr std::uintptr_t line_bytes = 64, ahead = std::uintptr_t{2 * Lines} * tile_words * sizeof(std::uint32_t);
    MHA_UNROLL_4
    for (std::uintptr_t i = 0; i < Lines; ++i)
      __builtin_prefetch(
          reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(line) + ahead + i * line_bytes));
  }

  /// Asks for a row of A that comes 8 KiB later: rows and tiles lie one after another, and sixteen of them side by side
  /// are more than processors read ahead. With few columns their reading is the limit.
  MHA_ALWAYS_INLINE static void fetch_row(const std::uint32_t* row) {
    constexpr std::uintptr_t ahead = 8192;
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(row) + ahead));
  }

  template <int Rows>
  MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE static void some_rows(const TileProduct& p, Index t, Index first) {
    typedef float V __attribute__((vector_size(64)));
    typedef std::uint32_t I __attribute__((vector_size(64)));
    constexpr int rows = Rows, columns = Columns;
    const std::uint32_t* a = reinterpret_cast<const std::uint32_t*>(p.a + t * p.tile_stride + first * p.row_stride);
    const std::ptrdiff_t row = p.row_stride / 2;
    const std::uint32_t* b = p.b;
    float* const c = p.c + (std::ptrdiff_t{t} * tile_side + first) * lanes;
    V sum[std::size_t{rows}][std::size_t{columns}];
    MHA_UNROLL_16
    for (int i = 0; i < rows; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < columns; ++j) {
        sum[i][j] = V{};
        if (p.add) simd::load(sum[i][j], c + i * lanes + j * tile_side);
      }
    }
    for (Index s = 0; s < p.steps; ++s, a += p.step_stride / 2, b += columns * tile_words)
      for (Index pair = 0; pair < tile_side; ++pair) {
        fetch<Columns>(b + pair * lanes);
        if constexpr (Columns <= 2)
          if (pair < Rows) fetch_row(a + pair * row);
        I right[std::size_t{columns}];
        MHA_UNROLL_4
        for (int j = 0; j < columns; ++j) simd::load(right[j], b + j * tile_words + pair * tile_side);
        MHA_UNROLL_16
        for (int i = 0; i < rows; ++i) {
          I left;
          asm("vpbroadcastd %1, %0" : "=v"(left) : "m"(a[i * row + pair]));
          MHA_UNROLL_4
          for (int j = 0; j < columns; ++j) add_dot_products(sum[i][j], left, right[j]);
        }
      }
    MHA_UNROLL_16
    for (int i = 0; i < rows; ++i) {
      MHA_UNROLL_4
      for (int j = 0; j < columns; ++j) simd::store(c + i * lanes + j * tile_side, sum[i][j]);
    }
  }
};
#endif

/// Vector code of any processor, for an array of any depth: operands widened to float, a pass of the array at a time.
///
/// Numerics  SumOrder::chained. Products of bfloat16 are exact in float, so that an unfused multiply-add, all that some
///           processors and unoptimised builds have, gives the same bits unless a product leaves the normal range
template <Index Depth> struct PortableProduct {
  static_assert(
      Depth % tile_depth == 0,
      "mha: portable code runs arrays whose depth is a multiple of 32, as packed tiles are: use EmulatedArray "
      "for others (see mha/backend/systolic/emulation.hpp)");
  static constexpr Index lanes = 32;

  template <class Isa> MHA_ALWAYS_INLINE static void run(const TileProduct& p) {
    if (p.rows == 1) return one_row<Isa>(p);
    constexpr int W = simd::Vector<float, Isa>::width;
    constexpr int vectors = Isa::registers == 32 || W == 8 ? 2 : 4;
    constexpr int rows = Isa::registers == 32 ? 8 : W == 8 ? 4 : 2;
    constexpr Index at_once = Depth / tile_depth;
    alignas(64) float a[std::size_t{tile_side * Depth}], b[std::size_t{Depth * lanes}];
    for (Index s = 0; s < p.steps; s += at_once) {
      const Index steps = std::min(at_once, p.steps - s);
      for (Index i = 0; i < steps; ++i)
        widen_pairs<Isa>(p.b + (s + i) * (lanes / tile_side) * tile_words, b + i * tile_depth * lanes);
      for (Index t = 0; t < p.tiles; ++t) {
        const Index wanted = std::min(tile_side, round_up(p.rows - t * tile_side, rows));
        for (Index i = 0; i < steps; ++i)
          widen_rows(p.a + t * p.tile_stride + (s + i) * p.step_stride, p.row_stride, wanted, a + i * tile_depth);
        for (Index j = 0; j < lanes; j += vectors * W)
          simd::ProductBody<float, rows, vectors>::template run<Isa>(
              {a, Depth, b + j, lanes, p.c + std::ptrdiff_t{t} * tile_side * lanes + j, lanes, wanted,
               steps * tile_depth, p.add || s > 0});
      }
    }
  }

 private:
  /// A row alone takes its pairs of B as they are read: there is no second row to widen them for.
  template <class Isa> MHA_ALWAYS_INLINE static void one_row(const TileProduct& p) {
    using V = simd::vector_t<float, Isa>;
    constexpr int W = simd::Vector<float, Isa>::width, vectors = lanes / W;
    constexpr Index at_once = Depth / tile_depth;
    const std::uint32_t* b = p.b;
    for (Index s = 0; s < p.steps; s += at_once) {
      V sum[std::size_t{vectors}];
      MHA_UNROLL_8
      for (int j = 0; j < vectors; ++j) sum[j] = V{};
      for (Index i = s; i < std::min(s + at_once, p.steps); ++i, b += lanes / tile_side * tile_words) {
        const bfloat16* const a = p.a + i * p.step_stride;
        for (Index pair = 0; pair < tile_side; ++pair) {
          V even, odd;
          simd::broadcast(even, static_cast<float>(a[2 * pair]));
          simd::broadcast(odd, static_cast<float>(a[2 * pair + 1]));
          MHA_UNROLL_8
          for (int j = 0; j < vectors; ++j) {
            typename simd::Vector<float, Isa>::int_type words;
            simd::load(words, b + j * W / tile_side * tile_words + pair * tile_side + j * W % tile_side);
            simd::multiply_add<vectors == 1>(sum[j], even, V(words << 16));
            simd::multiply_add<vectors == 1>(sum[j], odd, V(words & 0xffff0000u));
          }
        }
      }
      MHA_UNROLL_8
      for (int j = 0; j < vectors; ++j) {
        if (p.add || s > 0) {
          V before;
          simd::load(before, p.c + j * W);
          sum[j] = before + sum[j];
        }
        simd::store(p.c + j * W, sum[j]);
      }
    }
  }

  MHA_ALWAYS_INLINE static void widen_rows(const bfloat16* from, std::ptrdiff_t stride, Index rows, float* to) {
    for (Index r = 0; r < rows; ++r)
      for (Index d = 0; d < tile_depth; ++d) to[r * Depth + d] = static_cast<float>(from[r * stride + d]);
  }

  /// Pairs of the depth → two rows of all lanes.
  template <class Isa> MHA_ALWAYS_INLINE static void widen_pairs(const std::uint32_t* from, float* to) {
    using V = simd::vector_t<float, Isa>;
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index pair = 0; pair < tile_side; ++pair, to += 2 * lanes)
      for (Index j = 0; j < lanes; j += W) {
        typename simd::Vector<float, Isa>::int_type words;
        simd::load(words, from + j / tile_side * tile_words + pair * tile_side + j % tile_side);
        simd::store(to + j, V(words << 16));
        simd::store(to + lanes + j, V(words & 0xffff0000u));
      }
  }
};

/// The oracle: a tile at a time through the emulated array.
template <SumOrder Order> struct EmulatedProduct {
  static constexpr Index lanes = 32;

  static void run(const TileProduct& p) {
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
          array.multiply({p.a + t * p.tile_stride + s * p.step_stride, {tile_side, tile_depth}, {p.row_stride, 1}},
                         {b, {tile_depth, tile_side}, {tile_side, 1}}, c);
        }
      }
  }
};

#if defined(__x86_64__)
/// Dot products on Columns tiles of B side by side, or fewer where fewer queries are given.
template <int Columns>
inline constexpr ProductUnit dot_product_unit{
    .unit = MatrixUnit::dot_product,
    .lanes = DotProduct<Columns>::lanes,
    .multiply = &Avx512Bf16::run<DotProduct<Columns>, const TileProduct&>,
    .fewer = Columns > 1 ? &dot_product_unit<std::max(Columns - 1, 1)> : nullptr};
#endif

/// A unit of this machine with Columns tiles of B side by side where it has a choice; portable code at the given level
/// as an array of this depth.
template <int Columns, Index Depth> ProductUnit product_unit(MatrixUnit unit, IsaLevel level) {
#if defined(__x86_64__)
  if (unit == MatrixUnit::amx) return {unit, AmxProduct::lanes, &AmxProduct::run, &AmxProduct::stay_awake};
  if (unit == MatrixUnit::dot_product) return dot_product_unit<Columns>;
#endif
  return simd::with_isa(level, [&](auto isa) {
    using Portable = PortableProduct<Depth>;
    return ProductUnit{unit, Portable::lanes, &decltype(isa)::template run<Portable, const TileProduct&>};
  });
}

/// A unit for attention: three registers of queries side by side use most of a dot product's operands.
inline ProductUnit product_unit(MatrixUnit unit, IsaLevel level) { return product_unit<3, tile_depth>(unit, level); }

/// Hardware has one shape; an array of another is emulated.
template <class Array> MatrixUnit unit_for() {
  return std::is_same_v<Array, AmxArray> ? current_unit() : MatrixUnit::portable;
}
/// What runs an array's dense products, 32 columns wide.
template <class Array> ProductUnit dense_unit() {
  return product_unit<2, Array::depth>(unit_for<Array>(), current_isa());
}
/// What runs an array's attention, with as many queries side by side as suit the unit. A row that moves its anchor ends
/// the pass of every row beside it, at a step of the softmax: a deeper array passes once a step, or bits would tell.
template <class Array> ProductUnit attention_unit() {
  return product_unit<3, std::min(Array::depth, key_block)>(unit_for<Array>(), current_isa());
}

/// The emulation of a unit's order of additions.
inline ProductUnit emulated_unit(SumOrder order) {
  constexpr MatrixUnit portable = MatrixUnit::portable;
  if (order == SumOrder::split_chains) return {portable, 32, &EmulatedProduct<SumOrder::split_chains>::run};
  if (order == SumOrder::pairs) return {portable, 32, &EmulatedProduct<SumOrder::pairs>::run};
  return {portable, 32, &EmulatedProduct<SumOrder::chained>::run};
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
