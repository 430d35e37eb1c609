// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "../simd/exp2_coarse.hpp"
#include "../simd/isa.hpp"
#include "../simd/vector.hpp"
#include "tiles.hpp"

/// The online softmax between the two products, with queries in lanes: every array below has a number per lane.
///
/// A row's weights are measured from an anchor, some logit it has seen: at first the largest of the first block in
/// which it sees a key, later raised to the largest logit of a block whose weights sum to more than `largest_block_sum`
/// or to NaN. The decision is each row's own, from its own logits in an absolute block of keys, so that its bits depend
/// on nothing else; where no row's anchor moves, there is no maximum to take and nothing to rescale.
namespace mha::inline v0::detail::systolic {

inline constexpr float largest_block_sum = 65536.f;

/// Anchors from here on (in powers of two) are too coarse to be subtracted after the multiplication by the slope.
inline constexpr float far_anchor = 16384.f;

/// The state of the rows of a tile.
struct SoftmaxRows {
  float* anchor;     ///< the logit that weights are measured from, −∞ before the first
  float* offset;     ///< anchor · slope rounded, 0 before the first
  float* sum;        ///< of weights
  float* block_sum;  ///< of weights of the last block
  float* fade;       ///< what contributions from before the last raise() are multiplied by
  Index lanes;
  float slope;  ///< from logits to powers of two
  /// Of all rows together.
  bool any_unseen = true, any_far = false, any_over = false, any_fade = false;
};

/// The rows that have no anchor yet, and with `over` those whose block sum is too large, take the block's largest
/// logit.
struct RaiseBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* s, Index n, SoftmaxRows* rows, bool over) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    constexpr float hidden = -std::numeric_limits<float>::infinity();
    const V zero{}, one = zero + 1.f;
    I unseen{}, far{}, fades{};
    for (Index lane = 0; lane < rows->lanes; lane += W) {
      V before, offset, sum, block_sum;
      simd::load(before, rows->anchor + lane);
      simd::load(offset, rows->offset + lane);
      simd::load(sum, rows->sum + lane);
      simd::load(block_sum, rows->block_sum + lane);
      V highest = before, odd = before;  // two chains
      for (Index k = 0; k < n; k += 2) {
        V x, y;
        simd::load(x, s + std::ptrdiff_t{k} * rows->lanes + lane);
        simd::load(y, s + std::ptrdiff_t{k + 1} * rows->lanes + lane);
        simd::raise<float>(highest, x);
        simd::raise<float>(odd, y);
      }
      simd::raise<float>(highest, odd);
      I moves = before == hidden;
      if (over) moves |= ~(I)(block_sum <= largest_block_sum);
      const V anchor = moves ? highest : before;
      const V moved = anchor == hidden ? zero : anchor * rows->slope;
      const I is_far = ~(I)((moved < far_anchor) & (moved > -far_anchor));
      const I was_far = ~(I)((offset < far_anchor) & (offset > -far_anchor));
      V fade = (is_far | was_far) ? (before - anchor) * rows->slope : offset - moved;
      simd::exp2_coarse_in_place<Isa>(fade);
      fade = ((before == hidden) | (anchor == before)) ? one : fade;
      simd::store(rows->anchor + lane, anchor);
      simd::store(rows->offset + lane, moved);
      simd::store(rows->sum + lane, sum * fade);
      simd::store(rows->fade + lane, fade);
      unseen |= (I)(anchor == hidden);
      far |= is_far;
      fades |= ~(I)(fade == one);
    }
    rows->any_unseen = any(unseen);
    rows->any_far = any(far);
    rows->any_fade = any(fades);
  }

  template <class I> MHA_ALWAYS_INLINE static bool any(const I& flags) {
    constexpr int count = static_cast<int>(sizeof(I) / sizeof(std::uint32_t));
    std::uint32_t bits = 0;
    for (int i = 0; i < count; ++i) bits |= flags[i];
    return bits != 0;
  }
};

/// Logits s (n, lanes) become weights, truncated to bfloat16, in the B tiles p (n / 32, lanes / 16, 16 pairs, 16), and
/// block_sum their sum as truncated, so that what truncation took from the weights it also takes from the denominator.
template <bool Far> struct WeightsBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* s, Index n, std::uint32_t* p, SoftmaxRows* rows) {
    using V = simd::vector_t<float, Isa>;
    using I = typename simd::Vector<float, Isa>::int_type;
    constexpr int W = simd::Vector<float, Isa>::width;
    const Index lanes = rows->lanes;
    const float slope = rows->slope;
    I over{};
    for (Index lane = 0; lane < lanes; lane += W) {
      V offset, anchor, sum{};
      simd::load(offset, rows->offset + lane);
      simd::load(anchor, rows->anchor + lane);
      anchor = anchor == -std::numeric_limits<float>::infinity() ? sum : anchor;
      const I far = ~(I)((offset < far_anchor) & (offset > -far_anchor));
      const float* from = s + lane;
      for (Index step = 0; step < n; step += tile_depth) {
        std::uint32_t* to =
            p + (step / tile_depth * (lanes / tile_side) + lane / tile_side) * tile_words + lane % tile_side;
#pragma GCC unroll 4
        for (Index pair = 0; pair < tile_side; ++pair, from += 2 * lanes, to += tile_side) {
          V even, odd;
          simd::load(even, from);
          simd::load(odd, from + lanes);
          weigh<Isa>(even, slope, offset, anchor, far);
          weigh<Isa>(odd, slope, offset, anchor, far);
          const I low = (I)even & 0xffff0000u, high = (I)odd & 0xffff0000u;
          const V both = (V)low + (V)high;
          sum = sum + both;
          simd::store(to, low >> 16 | high);
        }
      }
      simd::store(rows->block_sum + lane, sum);
      over |= ~(I)(sum <= largest_block_sum);
    }
    rows->any_over = RaiseBody::any(over);
  }

 private:
  template <class Isa, class V, class I>
  MHA_ALWAYS_INLINE static void weigh(V& x, float slope, const V& offset, const V& anchor, const I& far) {
    V t = x * slope - offset;
    if constexpr (Far) t = far ? (x - anchor) * slope : t;
    x = t;
    simd::exp2_coarse_in_place<Isa>(x);
  }
};

/// o (n, lanes) ← o · fade, results below the normal range as 0: a unit that takes them for 0 may or may not come by.
/// Rows whose fade is 1 keep theirs: they would not be here if no other row faded.
struct FadeBody {
  template <class Isa> MHA_ALWAYS_INLINE static void run(float* o, Index n, const float* fade, Index lanes) {
    using V = simd::vector_t<float, Isa>;
    constexpr int W = simd::Vector<float, Isa>::width;
    for (Index row = 0; row < n; ++row)
      for (Index lane = 0; lane < lanes; lane += W) {
        V x, f;
        simd::load(x, o + std::ptrdiff_t{row} * lanes + lane);
        simd::load(f, fade + lane);
        const V faded = x * f, zero{};
        simd::store(o + std::ptrdiff_t{row} * lanes + lane,
                    ((f != 1.f) & (faded < 0x1p-126f) & (faded > -0x1p-126f)) ? zero : faded);
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

/// The softmax at one instruction-set level.
struct SoftmaxKernels {
  void (*raise)(const float*, Index, SoftmaxRows*, bool);
  void (*weights)(const float*, Index, std::uint32_t*, SoftmaxRows*);
  void (*far_weights)(const float*, Index, std::uint32_t*, SoftmaxRows*);
  void (*fade)(float*, Index, const float*, Index);
  void (*add)(SoftmaxRows*);
};

inline SoftmaxKernels softmax_kernels(IsaLevel level) {
  return simd::with_isa(level, [](auto isa) {
    using Isa = decltype(isa);
    return SoftmaxKernels{&Isa::template run<RaiseBody, const float*, Index, SoftmaxRows*, bool>,
                          &Isa::template run<WeightsBody<false>, const float*, Index, std::uint32_t*, SoftmaxRows*>,
                          &Isa::template run<WeightsBody<true>, const float*, Index, std::uint32_t*, SoftmaxRows*>,
                          &Isa::template run<FadeBody, float*, Index, const float*, Index>,
                          &Isa::template run<AddBody, SoftmaxRows*>};
  });
}

}  // namespace mha::inline v0::detail::systolic
