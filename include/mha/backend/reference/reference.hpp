// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "../../core/online_softmax.hpp"
#include "../../core/stored_row.hpp"
#include "../backend.hpp"
#include "../backward.hpp"
#include "backward.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Attention exactly as the formula is written, in any scalar: numbers, dual numbers, a type of the user's own.
///
/// It stores a whole row of logits and adds in the order of the indices. It is the oracle that every other backend is
/// tested against and the text to read first; it is not fast.
/// A user's scalar needs + − · /, ==, <, conversion from numbers, exp and log found by argument, and an infinity in
/// numeric_limits.
/// Source    Vaswani et al. 2017, §3.2.1, eq. 1
struct Reference {
  static constexpr const char* name = "Reference";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;

  Support supported() const { return {}; }

  /// c = a · b + bias.
  template <class T> void gemm(const GemmCall<T>& call, Workspace&) const {
    using A = Accumulator<T>;
    for (Index i = 0; i < call.c.extent[0]; ++i)
      for (Index j = 0; j < call.c.extent[1]; ++j) {
        A sum(0);
        for (Index k = 0; k < call.a.extent[1]; ++k) sum += A(call.a(i, k)) * A(call.b(k, j));
        if (call.bias.data != nullptr) sum += A(call.bias(j));
        call.c(i, j) = T(sum);
      }
  }

  /// out = Σ_k weight_k · v_k for every batch, head and query.
  template <class T, class Source, class M, class S>
  void attend(const AttendCall<T, Source, M, S>& call, Workspace&) const {
    using A = Accumulator<T>;
    std::vector<Weight<A>> row;  // (visible keys)
    std::vector<A> sums;         // (Dv)
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index h = 0; h < call.shape.heads; ++h)
        for (Index i = 0; i < call.queries(b); ++i) {
          const OnlineSoftmax<A> state = softmax_row(call, b, h, i, row);
          if (call.log_sum_exp.data != nullptr) call.row_log_sum_exp(b, h, i) = state.log_sum_exp();
          if (call.states.level != nullptr) {
            call.states.level[call.row_state(b, h, i)] = state.max;
            call.states.sum[call.row_state(b, h, i)] = state.sum;
          }
          if (call.dropout.exist())
            for (auto& w : row) w.value = w.value * A(call.dropout_factor(b, h, i, w.key));
          sums.assign(static_cast<std::size_t>(call.value_dim), A(0));  // a row without visible keys stays 0
          A* const sum = sums.data();
          for (const auto& [k, weight] : row) {
            const auto* const value = call.kv.run(b, call.kv_head(h), k, k + 1).value;
            for (Index d = 0; d < call.value_dim; ++d) sum[d] += weight * detail::stored_number<A>(value, d);
          }
          T* const out = call.output(b, i, h);
          for (Index d = 0; d < call.value_dim; ++d) out[d * call.out.stride[3]] = T(sum[d]);
        }
  }

  /// The softmax itself, (B, Hq, Lq, Lk); hidden pairs are 0.
  template <class T, class Source, class M, class S>
  void weights(const AttendCall<T, Source, M, S>& call, TensorView<Accumulator<T>, 4> to, Workspace&) const {
    using A = Accumulator<T>;
    std::vector<Weight<A>> row;
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index h = 0; h < call.shape.heads; ++h)
        for (Index i = 0; i < call.queries(b); ++i) {
          softmax_row(call, b, h, i, row);
          for (Index k = 0; k < call.keys(b); ++k) to(b, h, i, k) = A(0);
          for (const auto& [k, weight] : row) to(b, h, i, k) = weight;
        }
  }

  /// Gradients of the call, from the states that attend() has left.
  template <class T, class Source, class M, class S, class Wanted>
  void attend_backward(const AttendBackwardCall<T, Source, M, S, Wanted>& call, Workspace&) const {
    detail::reference::attend_backward(call);
  }

  template <class T> std::string explain(const AttendPlan&) const {
    return std::string("Reference: plain loops in ") + detail::scalar_name<T>() +
           ", one row of logits at a time, one thread";
  }

 private:
  /// A visible key and its softmax weight.
  template <class A> struct Weight {
    Index key;
    A value;
  };

  /// One row of the softmax, hidden keys left out; returns its maximum and its sum, {−∞, 0} if nothing is visible.
  template <class T, class Source, class M, class S, class A>
  static OnlineSoftmax<A> softmax_row(const AttendCall<T, Source, M, S>& call, Index b, Index h, Index i,
                                      std::vector<Weight<A>>& row) {
    using mha::exp;
    row.clear();
    const Index position = call.position(b, i), g = call.kv_head(h);
    const T* const query = call.query(b, i, h);
    const Index keys = call.keys(b);
    for (Index k = 0; k < keys && (k = call.held(b, k)) < keys; ++k) {
      if (!call.mask(b, h, position, k)) continue;
      const auto* const key = call.kv.run(b, g, k, k + 1).key;
      A dot(0);
      for (Index d = 0; d < call.head_dim; ++d)
        dot += A(query[d * call.q.stride[3]]) * detail::stored_number<A>(key, d);
      const A logit = call.score(A(call.scale * dot), b, h, position, k);
      if (!(logit == minus_infinity<A>())) row.push_back({k, logit});
    }
    if (row.empty()) return {};

    A max = row.front().value;
    for (const auto& w : row)
      if (max < w.value) max = w.value;
    A sum(0);
    for (auto& w : row) {
      w.value = exp(w.value - max);
      sum += w.value;
    }
    const A denominator = call.sink.size == 0 ? sum : sum + exp(A(call.sink[h]) - max);
    for (auto& w : row) w.value = w.value / denominator;
    return {max, sum};
  }
};

}  // namespace mha::inline MHA_NAMESPACE
