// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "../../cache/kv_source.hpp"
#include "../../core/dual.hpp"
#include "../../core/math.hpp"
#include "../../policy/score.hpp"
#include "../backward.hpp"
#include "../pair_score_gradient.hpp"

/// The backward pass exactly as AttendBackwardCall writes it, in any scalar.
namespace mha::inline MHA_NAMESPACE::detail::reference {

/// The sums over the rows that read one key/value head.
///
/// Shapes    key (Lk, D)  value (Lk, Dv)
template <class A> struct HeadSums { std::vector<A> key, value; };

template <class A>
A dot(const A& zero, Index n, const auto* a, std::ptrdiff_t a_stride, const auto* b, std::ptrdiff_t b_stride) {
  A sum = zero;
  for (Index d = 0; d < n; ++d) sum += A(a[d * a_stride]) * A(b[d * b_stride]);
  return sum;
}

/// Row i of head h: dQ is stored, and what it adds to dK, dV and the sink is added.
template <class T, class Source, class M, class S, class Wanted>
void backward_row(const AttendBackwardCall<T, Source, M, S, Wanted>& call, Index b, Index h, Index i,
                  HeadSums<Accumulator<T>>& sums) {
  using A = Accumulator<T>;
  using mha::exp;
  const AttendCall<T, Source, M, S>& f = call.forward;
  const Index position = f.position(b, i), g = f.kv_head(h);
  const T* const query = f.query(b, i, h);
  const T* const d_out = call.row(call.d_out, b, i, h);
  const std::ptrdiff_t q_step = f.q.stride[3], d_step = call.d_out.stride[3];
  const A level = call.level[f.row_state(b, h, i)], sum = call.sum[f.row_state(b, h, i)];
  LongSum<A>* const slots = call.score.slots + (std::ptrdiff_t{b} * f.shape.heads + h) * call.score.count;
  std::vector<A> d_query(static_cast<std::size_t>(f.head_dim), A(0));

  if (!(level == minus_infinity<A>() && sum == A(0))) {
    const A slope = dot(A(0), f.value_dim, d_out, d_step, call.row(call.out, b, i, h), call.out.stride[3]);
    const A of_log_sum_exp = call.row_d_log_sum_exp(b, h, i);
    A denominator = sum;
    if (f.sink.size > 0) {
      denominator += exp(A(f.sink[h]) - level);
      using Long = LongSum<A>;
      if (call.sink != nullptr) call.sink[h] += Long(-slope / (A(1) + sum * exp(level - A(f.sink[h]))));
    }
    for (Index k = 0; k < f.keys(b); ++k) {
      if (!f.mask(b, h, position, k)) continue;
      const KvRun<T> at = f.kv.run(b, g, k, k + 1);
      const A s = A(f.scale * dot(A(0), f.head_dim, query, q_step, at.key, 1));
      const A t = f.score(s, b, h, position, k);
      if (t == minus_infinity<A>()) continue;
      const A above = exp(t - level), weight = above / denominator;
      A d_weight = dot(A(0), f.value_dim, d_out, d_step, at.value, 1), dropped = weight;
      if (f.dropout.exist()) {
        const A factor = A(f.dropout_factor(b, h, i, k));
        d_weight *= factor;
        dropped *= factor;
      }
      A d_t = weight * (d_weight - slope);
      if (call.d_log_sum_exp.data != nullptr) d_t += of_log_sum_exp * (above / sum);
      const auto score = at_head(f.score, b, h);
      add_score_gradients<Wanted>(call.score, score, slots, b, h, position, k, s, d_t);
      const auto lifted_score = lifted<NoScoreGradients, Dual<A>>(score, 0, 0);
      const A d_s = d_t * lifted_score(Dual<A>::variable(s), b, h, position, k).derivative[0] * f.scale;
      A* const d_key = sums.key.data() + std::ptrdiff_t{k} * f.head_dim;
      A* const d_value = sums.value.data() + std::ptrdiff_t{k} * f.value_dim;
      for (Index d = 0; d < f.head_dim; ++d) {
        d_query[static_cast<std::size_t>(d)] += d_s * A(at.key[d]);
        d_key[d] += d_s * A(query[d * q_step]);
      }
      for (Index d = 0; d < f.value_dim; ++d) d_value[d] += dropped * A(d_out[d * d_step]);
    }
  }
  if (call.query.wanted())
    for (Index d = 0; d < f.head_dim; ++d)
      call.query.put(call.query_row(b, i, h), d, d_query[static_cast<std::size_t>(d)]);
}

template <class T, class Source, class M, class S, class Wanted>
void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call) {
  using A = Accumulator<T>;
  const AttendCall<T, Source, M, S>& f = call.forward;
  if (call.sink != nullptr)
    for (Index h = 0; h < f.shape.heads; ++h) call.sink[h] = LongSum<A>(0);
  const Index group = f.kv_heads > 0 ? f.shape.heads / f.kv_heads : 0;
  HeadSums<A> sums;
  for (Index b = 0; b < f.shape.batch; ++b)
    for (Index g = 0; g < f.kv_heads; ++g) {
      const Index keys = f.keys(b);
      sums.key.assign(static_cast<std::size_t>(keys) * static_cast<std::size_t>(f.head_dim), A(0));
      sums.value.assign(static_cast<std::size_t>(keys) * static_cast<std::size_t>(f.value_dim), A(0));
      for (Index h = g * group; h < (g + 1) * group; ++h)
        for (Index i = 0; i < f.queries(b); ++i) backward_row(call, b, h, i, sums);
      const auto store = [&](const GradientTo<T>& to, const std::vector<A>& from, Index dim) {
        for (Index k = 0; to.wanted() && k < keys; ++k)
          for (Index d = 0; d < dim; ++d)
            to.put(call.key_row(to, b, k, g), d, from[static_cast<std::size_t>(std::ptrdiff_t{k} * dim + d)]);
      };
      store(call.key, sums.key, f.head_dim);
      store(call.value, sums.value, f.value_dim);
    }
}

}  // namespace mha::inline MHA_NAMESPACE::detail::reference
