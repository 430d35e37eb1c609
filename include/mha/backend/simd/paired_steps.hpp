// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../config.hpp"
#include "../../core/rounded_weights.hpp"
#include "../../core/scalar.hpp"
#include "isa.hpp"
#include "panel_layout.hpp"
#include "vector.hpp"
#include "widen.hpp"

/// Panels in 4 bits, of which a byte has the numbers of two rows.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// The integers of two rows as floats, from a register of words that has both: in the lowest byte of each word, or in
/// the highest where that takes fewer instructions.
template <class Isa> class PairedRows {
  using V = vector_t<float, Isa>;
  using I = typename Vector<float, Isa>::int_type;
  typedef std::int32_t Signed __attribute__((vector_size(sizeof(I))));
  static constexpr bool looks_up = MHA_WIDE_ASM && sizeof(V) == 64;  // a register has all 16 integers
  static constexpr bool shuffles = MHA_WIDE_ASM && sizeof(V) == 32;

 public:
  /// What first() and second() give for 1: words are converted where they are.
  static constexpr float one = shuffles ? 0x1p28f : 1.0f;

  MHA_ALWAYS_INLINE PairedRows() {
    if constexpr (looks_up) load(constant_, +integers);
    if constexpr (shuffles) load(constant_, reinterpret_cast<const float*>(+places));
  }

  MHA_ALWAYS_INLINE void load_pairs(I& words, const scaled_int4* from) const {
#if MHA_NEON_ASM
    float bytes;
    __builtin_memcpy(&bytes, from, sizeof(bytes));
    asm("tbl %0.16b, {%1.16b}, %2.16b"
        : "=w"(words)
        : "w"(bytes), "w"(I{0x00ffffffu, 0x01ffffffu, 0x02ffffffu, 0x03ffffffu}));
#else
    if constexpr (shuffles)
      shuffle_pairs(words, from);
    else
      load_sign_extended<Vector<float, Isa>::width>(words, from);
#endif
  }

  MHA_ALWAYS_INLINE void first(V& v, const I& words) const {
#if MHA_NEON_ASM
    asm("scvtf %0.4s, %1.4s, #28" : "=w"(v) : "w"(words << 4));
#else
    if constexpr (looks_up)
      look_up(v, words);
    else if constexpr (shuffles)
      v = __builtin_convertvector(Signed(words << 4), V);
    else
      v = __builtin_convertvector(Signed(words << 28) >> 28, V);
#endif
  }
  MHA_ALWAYS_INLINE void second(V& v, const I& words) const {
#if MHA_NEON_ASM
    asm("scvtf %0.4s, %1.4s, #28" : "=w"(v) : "w"(words & 0xf0000000u));
#else
    if constexpr (looks_up)
      look_up(v, words >> 4);
    else if constexpr (shuffles)
      v = __builtin_convertvector(Signed(words & 0xf0000000u), V);
    else
      v = __builtin_convertvector(Signed(words) >> 4, V);
#endif
  }

 private:
  /// Byte l to the highest of word l.
  MHA_ALWAYS_INLINE void shuffle_pairs([[maybe_unused]] I& words, [[maybe_unused]] const scaled_int4* from) const {
#if MHA_WIDE_ASM
    struct Stored {
      scaled_int4 bytes[8];
    };
    asm("vpbroadcastq %1, %0\n\tvpshufb %2, %0, %0"
        : "=&x"(words)
        : "m"(*reinterpret_cast<const Stored*>(from)), "x"(constant_));
#endif
  }
  /// By the lowest 4 bits of each word.
  MHA_ALWAYS_INLINE void look_up([[maybe_unused]] V& v, [[maybe_unused]] const I& words) const {
#if MHA_WIDE_ASM
    asm("vpermps %2, %1, %0" : "=v"(v) : "v"(words), "v"(constant_));
#endif
  }

  static constexpr float integers[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
  static constexpr std::uint32_t places[8] = {0x00ffffffu, 0x01ffffffu, 0x02ffffffu, 0x03ffffffu,
                                              0x04ffffffu, 0x05ffffffu, 0x06ffffffu, 0x07ffffffu};
  V constant_;
};

/// Two steps at a time, group after group. A number, which is an integer times a bfloat16, is exact.
template <> struct PanelSteps<float, scaled_int4> {
  using S = scaled_int4;

  template <class Isa, class V, std::size_t Panels, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_row(V (&sum)[Panels][Vectors], const float* row, Index depth, const S* panel,
                                        const S* lead, std::ptrdiff_t apart) {
    const PairedRows<Isa> pairs;
    for (; depth > 0; depth -= panel_group<S>, panel += panel_lead<S>, lead += panel_elements<S>(panel_group<S>)) {
      V scale[Panels][Vectors];
      MHA_UNROLL_4
      for (int i = 0; i < int{Panels}; ++i) load_scales<Isa>(scale[i], lead + i * apart);
      Index rows = of_group(depth);
      for (; rows > 1; rows -= 2, panel += panel_columns<float>, row += 2)
        add_row_to_pair<true>(sum, pairs, row, panel, scale, apart);
      if (rows == 1) add_row_to_pair<false>(sum, pairs, row, panel, scale, apart);
    }
  }

  template <class Isa, class V, std::size_t RowCount, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_rows(V (&sum)[RowCount][Vectors], const float* rows, std::ptrdiff_t rows_stride,
                                         Index depth, const S* panel, const S* lead, const char* next,
                                         std::ptrdiff_t step) {
    const PairedRows<Isa> pairs;
    for (; depth > 0; depth -= panel_group<S>, panel += panel_lead<S>, lead += panel_elements<S>(panel_group<S>)) {
      V scale[Vectors];
      load_scales<Isa>(scale, lead);
      Index more = of_group(depth);
      for (; more > 1; more -= 2, panel += panel_columns<float>, rows += 2) {
        MHA_UNROLL_8
        for (int j = 0; j < int{Vectors}; ++j, next += 2 * step) __builtin_prefetch(next, 0, 2);
        add_rows_to_pair<true>(sum, pairs, rows, rows_stride, panel, scale);
      }
      if (more == 1) add_rows_to_pair<false>(sum, pairs, rows, rows_stride, panel, scale);
    }
  }

  template <class Isa> MHA_ALWAYS_INLINE static void widen(const S* panel, const S* lead, Index depth, float* to) {
    constexpr int W = Vector<float, Isa>::width;
    constexpr Index columns = panel_columns<float>;
    const PairedRows<Isa> pairs;
    for (; depth > 0; depth -= panel_group<S>, panel += panel_lead<S>, lead += panel_elements<S>(panel_group<S>))
      for (Index more = of_group(depth); more > 0; more -= 2, panel += columns, to += 2 * columns)
        for (int j = 0; j < columns; j += W) {
          vector_t<float, Isa> scale[1], number[1];
          typename Vector<float, Isa>::int_type words[1];
          load_scales<Isa>(scale, lead, j);
          load_first(number, words, pairs, panel + j, scale);
          store(to + j, number[0]);
          if (more == 1) continue;
          load_second(number, words, pairs, scale);
          store(to + columns + j, number[0]);
        }
  }

 private:
  static constexpr std::ptrdiff_t fetched_ahead = 4096;  // so that what is in memory takes the time of the arithmetic

  /// Rows of a group with so many left. Not std::min: its references are why g++ would keep all sums in memory.
  MHA_ALWAYS_INLINE static Index of_group(Index left) { return left < panel_group<S> ? left : panel_group<S>; }

  template <class Isa, class V, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void load_scales(V (&scale)[Vectors], const S* lead, int first = 0) {
    constexpr float one = PairedRows<Isa>::one;
    const auto* const scales = reinterpret_cast<const WeightScale<S>*>(lead) + first;
    MHA_UNROLL_16
    for (int j = 0; j < int{Vectors}; ++j) {
      load_widened<float, Isa>(scale[j], scales + j * Vector<float, Isa>::width);
      if constexpr (one != 1) scale[j] = scale[j] * (1 / one);
    }
  }

  /// The numbers of the first row of a pair, and the words that have those of the second too.
  template <class Isa, class V, class I, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void load_first(V (&number)[Vectors], I (&words)[Vectors], const PairedRows<Isa>& pairs,
                                           const S* pair, const V (&scale)[Vectors]) {
    MHA_UNROLL_16
    for (int j = 0; j < int{Vectors}; ++j) {
      pairs.load_pairs(words[j], pair + j * Vector<float, Isa>::width);
      pairs.first(number[j], words[j]);
      number[j] = number[j] * scale[j];
    }
  }
  template <class Isa, class V, class I, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void load_second(V (&number)[Vectors], const I (&words)[Vectors],
                                            const PairedRows<Isa>& pairs, const V (&scale)[Vectors]) {
    MHA_UNROLL_16
    for (int j = 0; j < int{Vectors}; ++j) {
      pairs.second(number[j], words[j]);
      number[j] = number[j] * scale[j];
    }
  }

  template <bool Both, class Isa, class V, std::size_t Panels, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_row_to_pair(V (&sum)[Panels][Vectors], const PairedRows<Isa>& pairs,
                                                const float* row, const S* pair, const V (&scale)[Panels][Vectors],
                                                std::ptrdiff_t apart) {
    V x, after;
    broadcast(x, row[0]);
    if constexpr (Both) broadcast(after, row[1]);
    MHA_UNROLL_4
    for (int i = 0; i < int{Panels}; ++i) {
      __builtin_prefetch(pair + i * apart + fetched_ahead, 0, 3);
      typename Vector<float, Isa>::int_type words[Vectors];
      V number[Vectors];
      load_first(number, words, pairs, pair + i * apart, scale[i]);
      MHA_UNROLL_16
      for (int j = 0; j < int{Vectors}; ++j) multiply_add<false>(sum[i][j], x, number[j]);
      if constexpr (Both) {
        load_second(number, words, pairs, scale[i]);
        MHA_UNROLL_16
        for (int j = 0; j < int{Vectors}; ++j) multiply_add<false>(sum[i][j], after, number[j]);
      }
    }
  }

  template <bool Both, class Isa, class V, std::size_t RowCount, std::size_t Vectors>
  MHA_ALWAYS_INLINE static void add_rows_to_pair(V (&sum)[RowCount][Vectors], const PairedRows<Isa>& pairs,
                                                 const float* rows, std::ptrdiff_t rows_stride, const S* pair,
                                                 const V (&scale)[Vectors]) {
    constexpr bool alone = RowCount * Vectors == 1;
    typename Vector<float, Isa>::int_type words[Vectors];
    V number[Vectors];
    load_first(number, words, pairs, pair, scale);
    MHA_UNROLL_16
    for (int i = 0; i < int{RowCount}; ++i) multiply_add_all<alone>(sum[i], rows[i * rows_stride], number);
    if constexpr (Both) {
      load_second(number, words, pairs, scale);
      MHA_UNROLL_16
      for (int i = 0; i < int{RowCount}; ++i) multiply_add_all<alone>(sum[i], rows[i * rows_stride + 1], number);
    }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
