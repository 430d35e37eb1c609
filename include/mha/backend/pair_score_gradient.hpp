// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <type_traits>

#include "../core/dual.hpp"
#include "../core/scalar.hpp"
#include "../policy/score.hpp"
#include "../policy/score_gradient.hpp"
#include "backward.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The gradients of a score's own numbers += those of one pair whose logit is s and whose dt is this, for backends that
/// take pairs one after another. `score` is as it is for the head; `slots` are those of ScoreGradientsTo, or what is
/// added to them later.
template <class Wanted, class A, class Head>
void add_score_gradients(const ScoreGradientsTo<A>& to, const Head& score, LongSum<A>* slots, Index b, Index h, Index q,
                         Index k, const A& s, const A& d_t) {
  constexpr int count = Slots<Wanted, Head>::count(), tables = Tables<Wanted, Head>::count(),
                own = Accumulating<Wanted, Head>::count(), most = 8;
  if constexpr (count + tables + own > 0) {
    std::array<A, std::size_t{own} + 1> inputs{}, by_result{};
    // As many variables at a time as a dual number has.
    for (int from = 0; from < count + tables + own; from += most) {
      using D = Dual<A, 1 + most>;
      const D t = lifted<Wanted, D>(score, 1 - from, 1 + count - from, 1 + count + tables - from, inputs.data())(
          D::variable(s), b, h, q, k);
      for (int i = from; i < std::min(from + most, count + tables + own); ++i) {
        const A by = slope_times(d_t, t.derivative[1 + i - from]);
        if (i < count)
          slots[i] += LongSum<A>(by);
        else if (i < count + tables)
          to.tables[i - count].add(to.tables[i - count].at(b, h, q, k), by);
        else
          by_result[static_cast<std::size_t>(i - count - tables)] = by;
      }
    }
    LongSum<A>* next = slots + count;
    std::size_t i = 0;
    for_each_accumulating<Wanted>(score, [&](const auto& part) {
      const auto sums = span_for<std::remove_cvref_t<decltype(part)>>(next, std::size(part.numbers()));
      if (by_result[i] != A(0)) part.accumulate(sums, by_result[i], inputs[i], b, h, q, k);
      next += sums.size();
      ++i;
    });
  }
}

}  // namespace mha::inline MHA_NAMESPACE::detail
