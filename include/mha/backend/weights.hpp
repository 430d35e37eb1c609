// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../core/borrowed.hpp"
#include "../core/dual.hpp"
#include "../core/philox.hpp"
#include "../core/scalar.hpp"
#include "../core/stored_row.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "backend.hpp"

/// The materialised softmax as items, for a backend that runs items and wants no kernel of its own for it.
namespace mha::inline MHA_NAMESPACE::detail {

/// The sequence, head and query of a row of (B, Hq, Lq, Lk).
struct WeightRow {
  Index b, h, i;
  template <class A>
  MHA_HOST_DEVICE constexpr WeightRow(const TensorView<A, 4>& to, std::ptrdiff_t row)
      : b(static_cast<Index>(row / to.extent[2] / to.extent[1])),
        h(static_cast<Index>(row / to.extent[2] % to.extent[1])),
        i(static_cast<Index>(row % to.extent[2])) {}
};

/// to (B, Hq, Lq, Lk) = the logit of every pair, −∞ where it is hidden or outside its sequence. One item a pair.
template <class Call> struct LogitItems {
  using A = Accumulator<typename Call::Scalar>;

  std::ptrdiff_t rows;
  Index columns, cost;
  Call call;
  TensorView<A, 4> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index k) const {
    const WeightRow at(to, row);
    to(at.b, at.h, at.i, k) = logit(at, k);
  }

 private:
  MHA_HOST_DEVICE A logit(const WeightRow& at, Index k) const {
    if (at.i >= call.queries(at.b) || k >= call.keys(at.b)) return minus_infinity<A>();
    if (call.held(at.b, k) != k) return minus_infinity<A>();
    const Index position = call.position(at.b, at.i);
    if (!call.mask(at.b, at.h, position, k)) return minus_infinity<A>();
    const auto* const query = call.query(at.b, at.i, at.h);
    const auto* const key = call.kv.run(at.b, call.kv_head(at.h), k, k + 1).key;
    A dot(0);
    for (Index d = 0; d < call.head_dim; ++d) dot += A(query[d * call.q.stride[3]]) * stored_number<A>(key, d);
    return static_cast<A>(at_head(call.score, at.b, at.h)(A(call.scale * dot), at.b, at.h, position, k));
  }
};

/// Rows of logits made rows of the softmax, in place. One item a row.
template <class A> struct SoftmaxItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<A, 4> to;
  Borrowed<float> sink;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index) const {
    using mha::exp;
    const WeightRow at(to, row);
    const Index keys = to.extent[3];
    A* const x = to.pointer(at.b, at.h, at.i, 0);
    const A hidden = minus_infinity<A>();
    A top = hidden, sum(0);
    for (Index k = 0; k < keys; ++k)
      if (x[k] > top) top = x[k];
    for (Index k = 0; k < keys; ++k)
      if (x[k] != hidden) sum += exp(x[k] - top);  // of NaN alone there is no top, and the sum is NaN
    if (sink.size > 0) sum += exp(A(sink.data[at.h]) - top);
    const A share = A(1) / sum;  // a visible key makes the sum 1 at least
    for (Index k = 0; k < keys; ++k) x[k] = x[k] != hidden ? exp(x[k] - top) * share : A(0);
  }
};

/// The softmax of a call into `to` (B, Hq, Lq, Lk), row-major; all of it is written, 0 beyond a shorter sequence.
/// run(items) runs them.
///
/// Cost      one pass over `to` by pairs, three by rows
template <class Call, class A, class Run>
void run_softmax(const Call& call, const TensorView<A, 4>& to, const Run& run) {
  const std::ptrdiff_t rows = std::ptrdiff_t{to.extent[0]} * to.extent[1] * to.extent[2];
  run(LogitItems<Call>{rows, to.extent[3], call.head_dim, call, to});
  run(SoftmaxItems<A>{rows, 1, to.extent[3], to, call.sink});
}

/// Weights (B, Hq, Lq, Lk), each times its factor of dropout. One item is four keys of a row.
template <class A> struct DropItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  DropoutDraws draws;
  CallShape shape;
  TensorView<A, 4> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index block) const {
    const WeightRow at(to, row);
    const PhiloxWords words = draws.words(dropout_row(shape, at.b, at.h), shape.origin[at.b] + at.i, block);
    for (Index i = 0; i < 4 && 4 * block + i < to.extent[3]; ++i) {
      A& weight = to(at.b, at.h, at.i, 4 * block + i);
      weight = weight * A(words.word[i] >= draws.threshold ? draws.scale : 0);
    }
  }
};
template <class A>
DropItems<A> drop_items(const DropoutDraws& draws, const CallShape& shape, const TensorView<A, 4>& to) {
  const std::ptrdiff_t rows = std::ptrdiff_t{to.extent[0]} * to.extent[1] * to.extent[2];
  return {rows, (to.extent[3] + 3) / 4, 50, draws, shape, to};
}

}  // namespace mha::inline MHA_NAMESPACE::detail
