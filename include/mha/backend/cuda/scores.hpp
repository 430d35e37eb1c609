// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include "../backend.hpp"
#include "machine.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// What a mask and a score make of the dot products of one query head of one sequence, in the tensor-core body. The
/// others work on natural logits: see apply_policies() of warp_tile.hpp.
///
/// Without a score the scale is folded into the exponent, so that a logit costs one multiply-add; then what is called a
/// logit here is the dot product itself. Multiplied first is where a score needs the natural logit, where a scale that
/// is not positive keeps no maximum, and where one above the largest number / log₂ e has no finite slope.
///
/// Formula   exponent = logit · slope − top · slope, with slope = scale · log₂ e, or log₂ e after multiplying first
/// Numerics  with a score logits are subtracted before the multiplication, so that a bias of −1e9 stays a number
template <class Call> struct HeadLogits {
  using A = Accumulator<typename Call::Scalar>;
  using Score = std::remove_cvref_t<decltype(Call::score)>;
  static constexpr bool has_score = !std::is_same_v<Score, NoScore>;
  using HeadScore = decltype(at_head(std::declval<const Score&>(), Index{}, Index{}));

  const Call& call;
  Index b, h;
  Index queries, keys;  ///< of sequence b
  Index origin;
  HeadScore score;
  A scale;  ///< from dot products to logits; 1 where it is folded into the slope
  A slope;  ///< from logits to powers of two

  MHA_KERNEL HeadLogits(const Call& c, Index sequence, Index head)
      : call(c),
        b(sequence),
        h(head),
        queries(c.queries(sequence)),
        keys(c.keys(sequence)),
        origin(c.position(sequence, 0)),
        score(at_head(c.score, sequence, head)),
        scale(folds(c) ? A(1) : c.scale),
        slope(folds(c) ? c.scale * log2e<A>() : log2e<A>()) {}

  MHA_KERNEL static constexpr A hidden() { return minus_infinity<A>(); }

  MHA_KERNEL bool inside(Index row, Index key) const { return row < queries && key < keys; }

  /// The logit of a pair inside the call, whether or not the mask hides it.
  MHA_KERNEL A logit(A dot, Index row, Index key) const {
    if constexpr (has_score)
      return static_cast<A>(score(A(scale * dot), b, h, origin + row, key));
    else
      return scale * dot;
  }
  /// The logit of any pair of a tile; −∞ outside the call, where neither mask nor score is asked, and where hidden.
  MHA_KERNEL A visible_logit(A dot, Index row, Index key) const {
    return inside(row, key) && call.mask(b, h, origin + row, key) ? logit(dot, row, key) : hidden();
  }
  /// What the mask says of rows [row_begin, row_end) × keys [key_begin, key_end), both inside the call.
  MHA_KERNEL TileVisibility visibility(Index row_begin, Index row_end, Index key_begin, Index key_end) const {
    return mha::tile(call.mask, b, h, origin + row_begin, origin + row_end, key_begin, key_end);
  }

  /// What exponent() subtracts for a row whose largest logit is `top`.
  MHA_KERNEL A shift(A top) const {
    if (top == hidden()) return A(0);
    return has_score ? top : A(top * slope);
  }
  /// Whether a logit is so far above the one that is shifted by that its weight would pass 2⁸.
  MHA_KERNEL bool outgrows(A logit, A top) const { return (logit - top) * slope > A(8); }
  /// log₂ of the weight of a logit.
  template <class M> MHA_KERNEL A exponent(M& m, A logit, A shift) const {
    if constexpr (has_score)
      return (logit - shift) * slope;
    else
      return m.fma(logit, slope, -shift);
  }
  /// The natural log-sum-exp of a row, −∞ if it is empty.
  template <class M> MHA_KERNEL A log_sum_exp(M& m, A top, A sum) const {
    if (empty(top, sum)) return hidden();
    return (has_score ? top : A(shift(top) * ln2<A>())) + m.log(sum);
  }
  /// What a row is shifted by as a natural logit, rounded as a logit is, and its sum by that: where the scale is
  /// folded, exponents had a shift that was rounded otherwise.
  MHA_KERNEL A level(A top) const { return folds(call) ? A(call.scale * top) : top; }
  template <class M> MHA_KERNEL A level_sum(M& m, A top, A sum) const {
    return has_score || empty(top, sum) ? sum : A(sum * m.exp2(m.fma(-top, slope, shift(top))));
  }
  /// The denominator of a row: its sum and the term of the sink.
  template <class M> MHA_KERNEL A denominator(M& m, A top, A sum) const {
    if (call.sink.size == 0) return sum;
    const A sink = static_cast<A>(call.sink.data[h]);
    return sum + m.exp2(has_score ? A((sink - shift(top)) * slope) : A(m.fma(sink, log2e<A>(), -shift(top))));
  }
  /// Whether a row saw hidden logits only: a NaN that was seen is in the sum.
  MHA_KERNEL static bool empty(A top, A sum) { return top == hidden() && sum == A(0); }

 private:
  MHA_KERNEL static bool folds(const Call& c) {
    const A folded = c.scale * log2e<A>();
    return !has_score && folded > A(0) && folded < -hidden();
  }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
