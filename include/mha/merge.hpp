// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "backend/default.hpp"
#include "checked_call.hpp"
#include "core/check.hpp"
#include "core/online_softmax.hpp"
#include "core/overlap.hpp"
#include "core/scalar.hpp"
#include "core/view.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Joins attention over other keys into a first part, so that both together are attention over all of them.
///
/// Formula   lse = log(exp(lse₁) + exp(lse₂)),  out = out₁·exp(lse₁ − lse) + out₂·exp(lse₂ − lse)
/// A Sink belongs to the whole row, so neither part may have one. With Dropout each part needs a DropoutSeed of its
/// own: a part counts its keys from 0.
///
/// Shapes    out, other_out (B, Lq, H, Dv)  log_sum_exp, other_log_sum_exp (B, H, Lq), natural; an empty part changes
///           nothing
/// Errors    ShapeError if the sizes do not agree, or out or log_sum_exp overlaps itself or another of the four
/// Source    Dao et al. 2023 (FlashAttention-2), §3.1
template <ViewableOfRank<4> Out, ViewableOfRank<3> Lse, ViewableOfRank<4> OtherOut, ViewableOfRank<3> OtherLse>
void merge(Out&& out, Lse&& log_sum_exp, const OtherOut& other_out, const OtherLse& other_log_sum_exp) {
  using T = ScalarOf<Out>;
  using A = ScalarOf<Lse>;
  static_assert(detail::view_lasts<Out>() && detail::view_lasts<Lse>(),
                "mha: merge() into a temporary: the result would be gone: name out and log_sum_exp first (see "
                "mha/merge.hpp)");
  detail::check_memory_of<Cpu, Out, Lse, OtherOut, OtherLse>();
  const TensorView<T, 4> o = ViewTraits<std::remove_cvref_t<Out>>::view(out);
  const TensorView<A, 3> l = ViewTraits<std::remove_cvref_t<Lse>>::view(log_sum_exp);
  const TensorView<const T, 4> p = ViewTraits<OtherOut>::view(other_out);
  const TensorView<const A, 3> m = ViewTraits<OtherLse>::view(other_log_sum_exp);
  for (int a = 0; a < 4; ++a)
    detail::require_equal("merge", detail::axes_of_heads[a], "out", o.extent[a], "the other out", p.extent[a]);
  const int of_out[3] = {0, 2, 1};
  for (int a = 0; a < 3; ++a) {
    const char* const axis = detail::axes_of_logits[a];
    detail::require_equal("merge", axis, "out", o.extent[of_out[a]], "log-sum-exp", l.extent[a]);
    detail::require_equal("merge", axis, "out", o.extent[of_out[a]], "the other log-sum-exp", m.extent[a]);
  }
  detail::require_data("merge", "out", o);
  detail::require_data("merge", "the other out", p);
  detail::require_data("merge", "log-sum-exp", l);
  detail::require_data("merge", "the other log-sum-exp", m);
  detail::require_own_memory("merge", "out", o, detail::axes_of_heads);
  detail::require_own_memory("merge", "log-sum-exp", l, detail::axes_of_logits);
  const detail::NamedArray written[] = {{"out", detail::footprint(o)}, {"log-sum-exp", detail::footprint(l)}};
  const detail::NamedArray read[] = {{"the other out", detail::footprint(p)},
                                     {"the other log-sum-exp", detail::footprint(m)}};
  detail::require_apart("merge", written, read);
  for (Index b = 0; b < o.batch(); ++b)
    for (Index h = 0; h < o.heads(); ++h)
      for (Index i = 0; i < o.length(); ++i) {
        const bool first_empty = l(b, h, i) == minus_infinity<A>(), second_empty = m(b, h, i) == minus_infinity<A>();
        const auto w = merge_weights(l(b, h, i), m(b, h, i));
        for (Index d = 0; d < o.dim(); ++d) {
          // An empty part is 0 by rule; what its memory holds is not looked at.
          const A first = first_empty ? A(0) : w.first * A(o(b, i, h, d));
          const A second = second_empty ? A(0) : w.second * A(p(b, i, h, d));
          o(b, i, h, d) = T(first + second);
        }
        l(b, h, i) = w.log_sum_exp;
      }
}

}  // namespace mha::inline MHA_NAMESPACE
