// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <Eigen/Core>
#include <limits>
#include <type_traits>

#include "../../core/philox.hpp"
#include "../../core/scalar.hpp"
#include "../../policy/dropout.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/score.hpp"
#include "../backend.hpp"
#include "weight.hpp"

/// The logits and weights of pairs, forward and backward.
namespace mha::inline MHA_NAMESPACE::detail::eigen {

template <class A> using Array = Eigen::Map<Eigen::Array<A, Eigen::Dynamic, 1>>;

template <class Call>
inline constexpr bool has_score = !std::is_same_v<std::remove_cvref_t<decltype(Call::score)>, NoScore>;

/// Query rows [first, first + count) of head h of sequence b.
template <class Call> struct HeadRows {
  using A = Accumulator<typename Call::Scalar>;

  const Call& call;
  Index b, h, first, count;

  Index position(Index i) const { return call.position(b, first + i); }

  /// What the mask says of keys [k, end), pair by pair where it does not speak of tiles.
  TileVisibility seen(Index k, Index end) const {
    const TileVisibility says = mha::tile(call.mask, b, h, position(0), position(0) + count, k, end);
    if constexpr (silent_on_tiles<std::remove_cvref_t<decltype(Call::mask)>>) {
      Index shown = 0, asked = 0;
      for (Index i = 0; says == TileVisibility::partial && i < count && (shown == 0 || shown == asked); ++i)
        for (Index of = k; of < end; ++of, ++asked) shown += call.mask(b, h, position(i), of) ? 1 : 0;
      if (asked > 0 && shown == 0) return TileVisibility::none;
      if (asked > 0 && shown == asked) return TileVisibility::full;
    }
    return says;
  }

  /// s = score(s) where the mask, asked about `asked` keys at once, shows the pair, else −∞; s has a column, `stride`
  /// apart, of keys [begin, end) for each row.
  void score_and_mask(A* s, std::ptrdiff_t stride, Index begin, Index end, Index asked) const {
    const auto score = at_head(call.score, b, h);
    for (Index block = begin; block < end; block += asked) {
      const Index block_end = std::min(block + asked, end);
      const TileVisibility shows = seen(block, block_end);
      if (shows == TileVisibility::full && !has_score<Call>) continue;
      for (Index i = 0; i < count; ++i) {
        const Index q = position(i);
        A* const column = s + i * stride;
        for (Index k = block; k < block_end; ++k) {
          const bool shown =
              shows == TileVisibility::full || (shows == TileVisibility::partial && call.mask(b, h, q, k));
          column[k - begin] = shown ? static_cast<A>(score(column[k - begin], b, h, q, k)) : minus_infinity<A>();
        }
      }
    }
  }

  /// to = what dropout multiplies the weights of row i and keys [begin, begin + n) by.
  void dropout_factors(Index i, Index begin, Index n, A* to) const {
    const std::uint32_t row = dropout_row(call.shape, b, h);
    for (Index k = begin; k < begin + n;) {
      const PhiloxWords words = call.dropout.words(row, position(i), k / 4);
      for (const Index end = std::min(k / 4 * 4 + 4, begin + n); k < end; ++k)
        *to++ = static_cast<A>(words.word[k % 4] >= call.dropout.threshold ? call.dropout.scale : 0);
    }
  }
};

/// Logits s become weights e^(s − m), m at least each of them: NaN where s is NaN or ∞, and 0 where m is −∞.
template <class A> void weigh(Array<A> s, A m) {
  if (m == minus_infinity<A>())
    s = s.isNaN().select(s, A(0));
  else if constexpr (std::is_same_v<A, float>)
    s = s.unaryExpr(Weight{m});
  else  // Eigen's exponential of −∞ may be a subnormal number: no weight below the normal ones is kept
    s = ((s - m).exp() - std::numeric_limits<A>::min())
            .binaryExpr(Array<A>::PlainObject::Zero(s.size()),
                        Eigen::internal::scalar_max_op<A, A, Eigen::PropagateNaN>());
}

}  // namespace mha::inline MHA_NAMESPACE::detail::eigen
