// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gradient_params.hpp"
#include "machine.hpp"

/// The numbers of the rows that a backward pass begins with, and the gradient of the sink, which it ends with.
namespace mha::inline MHA_NAMESPACE::cuda {

/// A block of row_facts_body: a row of a head for each warp.
struct RowFactsShape {
  static constexpr int warps = 4, rows = warps, threads = warps * warp_size;
};

/// RowFacts of row i of a head, by the calling warp.
///
/// Numerics  a sink that outweighs the row beyond 2¹⁰⁰, in double 2⁹⁹⁶, counts as that much: its weights are
/// nothing
///           beside it, while what the log-sum-exp's gradient multiplies them by stays finite
template <class Machine, class Call>
MHA_KERNEL void store_row_facts(Machine& m, const GradientParams<Call>& p, Index b, Index h, Index i) {
  using A = Accumulator<typename Call::Scalar>;
  const Call& call = p.call;
  const Index lane = m.thread() % warp_size;
  const auto* const d_out = p.row(p.d_out, b, i, h);
  const auto* const out = p.row(p.out, b, i, h);
  A dot = A(0);
  for (Index d = lane; d < call.value_dim; d += warp_size)
    dot = m.fma(static_cast<A>(d_out[d * p.d_out.stride[3]]), static_cast<A>(out[d * p.out.stride[3]]), dot);
  MHA_UNROLL for (int other = 1; other < warp_size; other *= 2) dot += m.shuffle_xor(dot, other);
  if (lane != 0) return;

  const std::ptrdiff_t at = call.row_state(b, h, i);
  const A level = p.level[at], sum = p.sum[at];
  RowFacts<A> row{level_of_nothing<A>(), A(0), A(0), A(0)};
  if (!(level == minus_infinity<A>() && sum == A(0))) {
    A denominator = sum;
    if (call.sink.size > 0) {
      const A above = (static_cast<A>(call.sink.data[h]) - level) * log2e<A>();
      constexpr A most = A(sizeof(A) == 8 ? 0x1p996 : 0x1p100);
      denominator += m.exp2(above);
      if (denominator > most) denominator = most;
      row.sink = -dot / (A(1) + sum * m.exp2(-above));
    }
    // A level of +∞ makes weights NaN, as it did forward.
    row.level = level == level_of_nothing<A>() ? level - level : level;
    row.inverse = A(1) / denominator;
    row.slope = dot - p.row_d_log_sum_exp(b, h, i) * (denominator / sum);
  }
  m.store_global(&p.rows[at].level, row.level);
  m.store_global(&p.rows[at].inverse, row.inverse);
  m.store_global(&p.rows[at].slope, row.slope);
  m.store_global(&p.rows[at].sink, row.sink);
}

/// RowFacts of every row.
///
/// Grid      tiles of 4 rows · heads · batch, in the order of RowBlocks
template <class Machine, class Call> MHA_KERNEL void row_facts_body(Machine& m, const GradientParams<Call>& p) {
  const Call& call = p.call;
  const RowBlocks::Place at = p.blocks[m.block().x];
  const Index first = at.row_tile * RowFactsShape::rows, left = call.queries(at.b) - first;
  for (Index row = m.thread() / warp_size; row < RowFactsShape::rows && row < left; row += RowFactsShape::warps)
    store_row_facts(m, p, at.b, at.h, first + row);
}

/// The gradient of the sink's logits: each thread sums rows of its own, then one sums the threads.
///
/// Grid      heads
/// Numerics  in LongSum<A>; the same bits on every device
struct SinkSumShape {
  static constexpr int threads = 128;
  template <class A> static constexpr Shared bytes = threads* int{sizeof(LongSum<A>)};
};
template <class Machine, class Call> MHA_KERNEL void sink_sum_body(Machine& m, const GradientParams<Call>& p) {
  using A = Accumulator<typename Call::Scalar>;
  using Sum = LongSum<A>;
  const Call& call = p.call;
  const Index h = m.block().x;
  Sum sum(0);
  for (Index b = 0; b < call.shape.batch; ++b)
    for (Index i = m.thread(); i < call.queries(b); i += SinkSumShape::threads)
      sum += Sum(p.rows[call.row_state(b, h, i)].sink);
  m.store(m.shared() + m.thread() * int{sizeof(Sum)}, sum);
  m.sync();
  if (m.thread() != 0) return;
  Sum all(0);
  for (int t = 0; t < SinkSumShape::threads; ++t) all += m.template load<Sum>(m.shared() + t * int{sizeof(Sum)});
  m.store_global(p.sink + h, all);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
