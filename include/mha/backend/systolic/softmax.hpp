// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../../config.hpp"
#include "../simd/exp2_coarse.hpp"
#include "../simd/isa.hpp"
#include "../simd/tile_kernels.hpp"
#include "../simd/vector.hpp"
#include "tiles.hpp"

/// The online softmax between the two products, with queries in lanes: every array below has a number per lane.
///
/// A row's weights are measured from an anchor, some logit it has seen: at first the largest of the first block in
/// which it sees a key, later raised to the largest logit of a block whose weights sum to more than `largest_block_sum`
/// or to NaN. The decision is each row's own, from its own logits in an absolute block of keys, so that its bits depend
/// on nothing else; where no row's anchor moves, there is no maximum to take and nothing to rescale.
namespace mha::inline MHA_NAMESPACE::detail::systolic {

inline constexpr float largest_block_sum = 65536.f;

/// Steps that a power of two is counted in: as many as a bfloat16 number has between 1 and 2.
inline constexpr float octave = 128.f;

/// Anchors from here on (in powers of two) are too coarse to be subtracted after the multiplication by the slope.
inline constexpr float far_anchor = 16384.f;

/// Memory that weights fetch meanwhile: they leave the second cache idle, and products wait for it. Two cache lines
/// with each pair of keys, at first + pair·step + (lane / 16)·next, in bytes.
struct Ahead {
  const char* first = nullptr;  ///< or nothing
  std::ptrdiff_t step = 0, next = 0;
};

/// The state of the rows of a tile.
struct SoftmaxRows {
  float* anchor;     ///< the logit that weights are measured from, −∞ before the first
  float* offset;     ///< anchor · slope rounded to whole steps, 0 before the first
  float* sum;        ///< of weights
  float* block_sum;  ///< of weights of the last block
  float* rescale;    ///< what contributions from before the last raise() are multiplied by
  Index lanes;
  float slope;  ///< from logits to powers of two
  Ahead ahead = {};
  /// Of all rows together.
  bool any_unseen = true, any_far = false, any_over = false, any_rescale = false;
};

// g++ 12 takes comparisons of the widest registers apart, lane by lane, where it joins two or keeps one: here each
// makes a choice by itself that no other choice can be joined with.

/// 1 where |x| is not below a limit, NaN included.
template <class V, class I> MHA_ALWAYS_INLINE void not_below(const V& x, float limit, I& to) {
  to = (std::bit_cast<std::uint32_t>(limit) - 1u - (I(x) & 0x7fffffffu)) >> 31;
}

/// The rows that have no anchor yet, and with `over` those whose block sum is too large, take the block's largest
/// logit.
struct RaiseBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* s, Index n, SoftmaxRows* rows, bool over) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    constexpr float hidden = -std::numeric_limits<float>::infinity();
    constexpr float whole_steps = 0x1.8p16f;  // a float of this size has no fractions of a step
    const V zero{}, one = zero + 1.f;
    const I no{}, yes = no + 1u;
    I unseen{}, far{}, rescales{};
    for (Index lane = 0; lane < rows->lanes; lane += W) {
      V before, offset, sum, block_sum;
      simd::load(before, rows->anchor + lane);
      simd::load(offset, rows->offset + lane);
      simd::load(sum, rows->sum + lane);
      simd::load(block_sum, rows->block_sum + lane);
      constexpr Index chains = 4;
      V high[chains] = {before, before, before, before};
      for (Index k = 0; k < n; k += chains) {
        MHA_UNROLL_4
        for (Index i = 0; i < chains; ++i) {
          V x;
          simd::load(x, s + std::ptrdiff_t{k + i} * rows->lanes + lane);
          simd::raise<float>(high[i], x);
        }
      }
      simd::raise<float>(high[0], high[1]);
      simd::raise<float>(high[2], high[3]);
      simd::raise<float>(high[0], high[2]);
      const V highest = high[0];
      V anchor = before == hidden ? highest : before;
      if (over) anchor = block_sum <= largest_block_sum ? anchor : highest;
      const V exact = anchor == hidden ? zero : anchor * rows->slope;
      I is_far, was_far;
      not_below(exact, far_anchor, is_far);
      not_below(offset, far_anchor, was_far);
      V rounded = exact + whole_steps;
      simd::round_here(rounded);
      const V moved = is_far ? exact : rounded - whole_steps;
      V rescale = (is_far | was_far) ? (before - anchor) * rows->slope : offset - moved;
      simd::exp2_coarse_in_place<Isa>(rescale);
      const V stays = before == hidden ? anchor : before;
      rescale = anchor == stays ? one : rescale;
      simd::store(rows->anchor + lane, anchor);
      simd::store(rows->offset + lane, moved);
      simd::store(rows->sum + lane, sum * rescale);
      simd::store(rows->rescale + lane, rescale);
      unseen |= anchor == hidden ? yes : no;
      far |= is_far;
      rescales |= rescale == one ? no : yes;
    }
    rows->any_unseen = any(unseen);
    rows->any_far = any(far);
    rows->any_rescale = any(rescales);
  }

  template <class I> MHA_ALWAYS_INLINE static bool any(const I& flags) {
    std::uint64_t words[sizeof(I) / 8], bits = 0;
    std::memcpy(words, &flags, sizeof words);
    for (const std::uint64_t word : words) bits |= word;
    return bits != 0;
  }
};

/// How far the chord 1 + f lies above 2^f, in steps, at the middle of steps 2k and 2k + 1: k counts 64ths of an octave.
///
/// Numerics  fits 16 bits all the way
constexpr std::uint32_t above_power(std::uint32_t k) { return (k * (64 - k) * (40 + k / 8) + 2560) >> 12; }

struct ChordTable {
  alignas(64) std::uint8_t above[64];
  constexpr ChordTable() : above() {
    for (std::uint32_t k = 0; k < 64; ++k) above[k] = static_cast<std::uint8_t>(above_power(k));
  }
};
inline constexpr ChordTable chord_table;

/// Whether this machine looks 64 bytes up at once.
inline bool has_byte_lookup() {
#if MHA_WIDE_ASM
  return __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

/// How a logit becomes a weight. Lookup: has_byte_lookup(), for AVX-512.
///
/// Formula   n = round(128·(x·slope − offset)) + 127·128 is the logarithm of a weight as bfloat16 bits would be if 2^f
///           were 1 + f; above_power() takes off the difference
/// Numerics  a weight is within 0.73 % of 2^(x·slope − offset), and exact at whole powers; −∞ and what lies below the
///           normal range → 0
template <bool Lookup> struct WeightSteps {
  /// A float from here on counts in its last bits; its exponent leaves the bits of a bfloat16 number clear.
  static constexpr float counts = 0x1p23f;

  template <class Isa> static constexpr bool looks_up = Lookup&& Isa::register_bytes == 64;

  /// x ← counts + n, n = 0 at least; NaN stays NaN, or becomes the bits of one.
  template <bool Guarded, class Isa, class V, class I>
  MHA_ALWAYS_INLINE static void count(V& x, float slope, const V& start, const V& anchor, const I& far,
                                      const V& least) {
    V n = x * slope + start;
    if constexpr (Guarded) n = far ? (x - anchor) * slope + (counts + 127.f * octave) : n;
    simd::raise<float>(n, least);
    if constexpr (Guarded) n = n == n ? n : V(I(least) | 0x7fffu);
    x = n;
  }

  /// seen |= even | odd.
  template <class Isa, class I> MHA_ALWAYS_INLINE static void note(I& seen, const I& even, const I& odd) {
#if MHA_WIDE_ASM
    if constexpr (Isa::register_bytes == 64) {
      asm("vpternlogd $0xfe, %1, %2, %0" : "+v"(seen) : "v"(even), "v"(odd));
      return;
    }
#endif
    seen |= even | odd;
  }

  template <class Isa, class I> MHA_ALWAYS_INLINE static void load_table(I& table) {
    if constexpr (looks_up<Isa>) simd::load(table, reinterpret_cast<const std::uint32_t*>(chord_table.above));
  }

  /// both ← two counts side by side less what they have too much: the chord's difference, and `word` above.
  template <class Isa, class I>
  MHA_ALWAYS_INLINE static void subtract_chord(I& both, [[maybe_unused]] const I& table, const I& word) {
    const I halved = both >> 1;
#if MHA_WIDE_ASM
    if constexpr (looks_up<Isa>) {
      I above = word;
      const std::uint64_t lower_bytes = 0x5555555555555555u;
      asm("vpermb %1, %2, %0%{%3%}" : "+v"(above) : "v"(table), "v"(halved), "Yk"(lower_bytes));
      both = both - above;
      return;
    }
#endif
    typedef std::uint16_t Short __attribute__((vector_size(Isa::register_bytes)));
    const Short k = Short(halved) & std::uint16_t{63};
    const Short above = (k * (64 - k) * (40 + (k >> 3)) + 2560) >> 12;
    both = both - I(above) - word;
  }
};

/// Logits s (n, lanes) become weights in bfloat16, in the B tiles p (n / 32, lanes / 16, 16 pairs, 16), and block_sum
/// their sum. A Guarded one takes rows with a far anchor and logits that are NaN too; one that is not gives such rows a
/// block_sum of NaN.
template <bool Guarded, bool Lookup> struct WeightsBody : private WeightSteps<Lookup> {
  using Steps = WeightSteps<Lookup>;
  using Steps::counts;

  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* s, Index n, std::uint32_t* p, SoftmaxRows* rows) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    const Index lanes = rows->lanes;
    const float slope = rows->slope * octave;
    const V zero{}, nan = zero + std::numeric_limits<float>::quiet_NaN();
    V least = zero + counts;
    I table{}, word = I(least);
    Steps::template load_table<Isa>(table);
    Ahead ahead = rows->ahead;
    if (ahead.first == nullptr) ahead.first = reinterpret_cast<const char*>(s);
    I over{};
    for (Index lane = 0; lane < lanes; lane += W) {
      V offset, anchor, sum{};
      simd::load(offset, rows->offset + lane);
      simd::load(anchor, rows->anchor + lane);
      anchor = anchor == -std::numeric_limits<float>::infinity() ? zero : anchor;
      I far;
      not_below(offset, far_anchor, far);
      const V start = (counts + 127.f * octave) - offset * octave;  // exact unless far
      I seen{};
      const float* from = s + lane;
      const char* lines = ahead.first + lane / tile_side * ahead.next;
      for (Index step = 0; step < n; step += tile_depth) {
        std::uint32_t* to =
            p + (step / tile_depth * (lanes / tile_side) + lane / tile_side) * tile_words + lane % tile_side;
        MHA_UNROLL_4
        for (Index pair = 0; pair < tile_side; ++pair, from += 2 * lanes, to += tile_side) {
          __builtin_prefetch(lines);
          __builtin_prefetch(lines + 64);
          lines += ahead.step;
          V even, odd;
          simd::load(even, from);
          simd::load(odd, from + lanes);
          Steps::template count<Guarded, Isa>(even, slope, start, anchor, far, least);
          Steps::template count<Guarded, Isa>(odd, slope, start, anchor, far, least);
          Steps::template note<Isa>(seen, I(even), I(odd));
          I both = (I(odd) << 16) + I(even);  // the upper half has even's exponent in it
          Steps::template subtract_chord<Isa>(both, table, word);
          const V low = V(both << 16), high = V(both & 0xffff0000u);
          sum = sum + (low + high);
          simd::store(to, both);
        }
      }
      sum = (seen & ~(I(least) | 0x7fffu)) != 0 ? nan : sum;
      simd::store(rows->block_sum + lane, sum);
      over |= sum <= largest_block_sum ? I{} : I{} + 1u;
    }
    rows->any_over = RaiseBody::any(over);
  }
};

/// o (n, lanes) ← o · rescale, results below the normal range as 0: a unit that takes them for 0 may or may not come
/// by. Rows whose rescale is 1 keep theirs: they would not be here if no other row were rescaled.
struct RescaleBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(float* o, Index n, const float* rescale, Index lanes) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index lane = 0; lane < lanes; lane += W) {
      V f;
      simd::load(f, rescale + lane);
      // What would be rescaled to below the range is 0 before, too: such a number takes a processor very long.
      const V zero{}, smallest = f == 1.f ? zero : zero + 0x1p-126f, least = smallest / f;
      for (Index row = 0; row < n; ++row) {
        float* const at = o + std::ptrdiff_t{row} * lanes + lane;
        V x;
        simd::load(x, at);
        const V rescaled = (V(I(x) & 0x7fffffffu) < least ? zero : x) * f;
        simd::store(at, V(I(rescaled) & 0x7fffffffu) < smallest ? zero : rescaled);
      }
    }
  }
};

/// sum += block_sum.
struct AddBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(SoftmaxRows* rows) {
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index lane = 0; lane < rows->lanes; lane += W) {
      simd::vector_t<float, Isa> sum, block;
      simd::load(sum, rows->sum + lane);
      simd::load(block, rows->block_sum + lane);
      simd::store(rows->sum + lane, sum + block);
    }
  }
};

/// total ← both parts, as Cpu merges them. A kernel of its own: a unit that instantiates this backend, perhaps without
/// optimization, brings no second copy of one that Cpu runs.
struct MergeBody {
  template <class Isa>
  MHA_ALWAYS_INLINE static void run(simd::TileState<float> total, simd::TileState<float> part, float slope, Index dim,
                                    Index lanes) {
    simd::MergeBody<float>::run<Isa>(total, part, slope, dim, lanes);
  }
};

/// The softmax at one instruction-set level.
struct SoftmaxKernels {
  void (*raise)(const float*, Index, SoftmaxRows*, bool);
  void (*weights)(const float*, Index, std::uint32_t*, SoftmaxRows*);
  void (*guarded_weights)(const float*, Index, std::uint32_t*, SoftmaxRows*);
  void (*rescale)(float*, Index, const float*, Index);
  void (*add)(SoftmaxRows*);
  void (*merge)(simd::TileState<float>, simd::TileState<float>, float, Index, Index);
};

inline SoftmaxKernels softmax_kernels(IsaLevel level, bool byte_lookup = has_byte_lookup()) {
  return simd::with_isa(level, [&](auto isa) {
    using Isa = decltype(isa);
    const auto kernels = [](auto lookup) {
      constexpr bool by_table = decltype(lookup)::value;
      return SoftmaxKernels{
          &Isa::template run<RaiseBody, const float*, Index, SoftmaxRows*, bool>,
          &Isa::template run<WeightsBody<false, by_table>, const float*, Index, std::uint32_t*, SoftmaxRows*>,
          &Isa::template run<WeightsBody<true, by_table>, const float*, Index, std::uint32_t*, SoftmaxRows*>,
          &Isa::template run<RescaleBody, float*, Index, const float*, Index>,
          &Isa::template run<AddBody, SoftmaxRows*>,
          &Isa::template run<MergeBody, simd::TileState<float>, simd::TileState<float>, float, Index, Index>};
    };
    if constexpr (Isa::register_bytes == 64)
      if (byte_lookup) return kernels(std::true_type{});
    return kernels(std::false_type{});
  });
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
