// SPDX-License-Identifier: Apache-2.0
// A whole backend that shares no code with the others: what somebody who adds one has to write.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <mha/backend/backend.hpp>
#include <mha/core/online_softmax.hpp>

namespace support {

/// Row by row, one online softmax each, everything summed in double.
struct PlainBackend {
  static constexpr const char* name = "Plain";
  static constexpr bool drops = true;
  using Workspace = mha::Workspace;
  using Index = mha::Index;

  mha::Support supported() const { return {}; }

  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace&) const {
    for (Index i = 0; i < call.c.extent[0]; ++i)
      for (Index j = 0; j < call.c.extent[1]; ++j) {
        double sum = call.bias.data == nullptr ? 0 : wide(call.bias(j));
        for (Index k = 0; k < call.a.extent[1]; ++k) sum += wide(call.a(i, k)) * wide(call.b(k, j));
        call.c(i, j) = narrow<T>(sum);
      }
  }

  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace& workspace) const {
    auto frame = workspace.frame();
    double* const out = frame.template take<double>(static_cast<std::size_t>(call.value_dim));
    for_each_row(call, [&](Index b, Index h, Index i) {
      mha::OnlineSoftmax<double> state;
      std::fill_n(out, call.value_dim, 0.0);
      for_each_visible(call, b, h, i, [&](Index k, double logit, const auto* value) {
        const auto step = state.add(logit);
        const double weight = step.weight * (call.dropout.exist() ? call.dropout_factor(b, h, i, k) : 1);
        for (Index d = 0; d < call.value_dim; ++d) out[d] = out[d] * step.rescale + weight * wide(value[d]);
      });
      T* const to = call.output(b, i, h);
      const double divisor = denominator(call, state, h);
      for (Index d = 0; d < call.value_dim; ++d)
        to[d * call.out.stride[3]] = narrow<T>(state.empty() ? 0 : out[d] / divisor);
      if (call.log_sum_exp.data != nullptr)
        call.row_log_sum_exp(b, h, i) = static_cast<mha::Accumulator<T>>(state.log_sum_exp());
    });
  }

  template <class T, class Source, class M, class S>
  void weights(const mha::AttendCall<T, Source, M, S>& call, mha::TensorView<mha::Accumulator<T>, 4> to,
               Workspace&) const {
    for_each_row(call, [&](Index b, Index h, Index i) {
      mha::OnlineSoftmax<double> state;
      for (Index k = 0; k < call.keys(b); ++k) to(b, h, i, k) = 0;
      for_each_visible(call, b, h, i, [&](Index, double logit, const auto*) { state.add(logit); });
      const double divisor = denominator(call, state, h);
      for_each_visible(call, b, h, i, [&](Index k, double logit, const auto*) {
        to(b, h, i, k) = static_cast<mha::Accumulator<T>>(std::exp(logit - state.max) / divisor);
      });
    });
  }

  template <class T> std::string explain(const mha::AttendPlan& plan) const {
    return "Plain: one row after another, " + std::to_string(plan.shape.queries) + " of them per head";
  }

 private:
  template <class T> static double wide(T x) { return static_cast<double>(static_cast<mha::Accumulator<T>>(x)); }
  template <class T> static T narrow(double x) { return static_cast<T>(static_cast<mha::Accumulator<T>>(x)); }

  template <class Call, class F> static void for_each_row(const Call& call, F&& f) {
    for (Index b = 0; b < call.shape.batch; ++b)
      for (Index h = 0; h < call.shape.heads; ++h)
        for (Index i = 0; i < call.queries(b); ++i) f(b, h, i);
  }

  /// The sum over the keys and, relative to the same maximum, the sink.
  template <class Call> static double denominator(const Call& call, const mha::OnlineSoftmax<double>& row, Index h) {
    return call.sink.size == 0 ? row.sum : row.sum + std::exp(wide(call.sink[h]) - row.max);
  }

  /// f(k, logit, value row) for every key that query i sees, run after run of the source.
  template <class Call, class F> static void for_each_visible(const Call& call, Index b, Index h, Index i, F&& f) {
    using A = mha::Accumulator<typename Call::Scalar>;
    const Index q = call.position(b, i);
    const auto* const query = call.query(b, i, h);
    const auto score = mha::at_head(call.score, b, h);
    const Index keys = call.keys(b);
    for (Index begin = call.held(b, 0); begin < keys;) {
      const auto run = call.kv.run(b, call.kv_head(h), begin, keys);
      for (Index r = 0; r < run.count; ++r) {
        const Index k = begin + r;
        if (!call.mask(b, h, q, k)) continue;
        double dot = 0;
        for (Index d = 0; d < call.head_dim; ++d)
          dot += wide(query[d * call.q.stride[3]]) * wide(run.key[r * run.key_stride + d]);
        const auto logit = static_cast<double>(score(static_cast<A>(call.scale * dot), b, h, q, k));
        if (logit != mha::minus_infinity<double>()) f(k, logit, run.value + r * run.value_stride);
      }
      begin = call.held(b, begin + run.count);
    }
  }
};

static_assert(mha::Backend<PlainBackend>);

}  // namespace support
