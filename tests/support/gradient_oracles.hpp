// SPDX-License-Identifier: Apache-2.0
// Gradients of attention written down once more, by plain loops in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <mha/core/tensor.hpp>

#include "backward_case.hpp"
#include "compare.hpp"

namespace support {

/// The gradients of one causal head where all between products is stored as T and sums are double: what a plain 16-bit
/// implementation does at best.
template <class T> BackwardCase<double> plain_16_bit(const BackwardCase<T>& c) {
  using mha::Index;
  const auto round = [](double x) { return to_double(T(static_cast<float>(x))); };
  const auto x = c.template as<double>();
  BackwardCase<double> g = x;
  const Index queries = c.q.extent(1), keys = c.k.extent(1), dim = c.q.extent(3), v_dim = c.v.extent(3);
  for (auto* t : {&g.q, &g.k, &g.v}) std::fill(t->begin(), t->end(), 0.);
  const double scale = 1 / std::sqrt(double(dim));
  std::vector<double> p(static_cast<std::size_t>(keys)), dp = p;
  for (Index i = 0; i < queries; ++i) {
    double most = -INFINITY, sum = 0, delta = 0;
    for (Index k = 0; k <= i; ++k) {
      double s = 0, d_p = 0;
      for (Index d = 0; d < dim; ++d) s += x.q(0, i, 0, d) * x.k(0, k, 0, d);
      for (Index d = 0; d < v_dim; ++d) d_p += x.d_out(0, i, 0, d) * x.v(0, k, 0, d);
      p[static_cast<std::size_t>(k)] = round(scale * s);
      dp[static_cast<std::size_t>(k)] = round(d_p);
      most = std::max(most, p[static_cast<std::size_t>(k)]);
    }
    for (Index k = 0; k <= i; ++k)
      sum += p[static_cast<std::size_t>(k)] = std::exp(p[static_cast<std::size_t>(k)] - most);
    for (Index k = 0; k <= i; ++k) p[static_cast<std::size_t>(k)] = round(p[static_cast<std::size_t>(k)] / sum);
    for (Index d = 0; d < v_dim; ++d) {
      double o = 0;
      for (Index k = 0; k <= i; ++k) o += p[static_cast<std::size_t>(k)] * x.v(0, k, 0, d);
      delta += round(o) * x.d_out(0, i, 0, d);
    }
    for (Index k = 0; k <= i; ++k) {
      const double w = p[static_cast<std::size_t>(k)],
                   ds = round(w * (dp[static_cast<std::size_t>(k)] - delta)) * scale;
      for (Index d = 0; d < dim; ++d) {
        g.q(0, i, 0, d) += ds * x.k(0, k, 0, d);
        g.k(0, k, 0, d) += ds * x.q(0, i, 0, d);
      }
      for (Index d = 0; d < v_dim; ++d) g.v(0, k, 0, d) += w * x.d_out(0, i, 0, d);
    }
  }
  for (auto* t : {&g.q, &g.k, &g.v})
    for (double& e : *t) e = round(e);
  return g;
}

/// One group of heads, of which every third query has logits near −10⁹ to all keys.
template <class T> struct FarRows {
  BackwardCase<T> c;
  mha::Tensor<float, 2> bias;
  BackwardCase<double> expected;  ///< gradients of q, k and v

  FarRows() : c(BackwardCase<float>("far rows", {1, 37, 70, 2, 1, 20, 12}).as<T>()), bias(37, 70) {
    using mha::Index;
    const auto x = c.template as<double>();
    expected = x;
    for (auto* t : {&expected.q, &expected.k, &expected.v}) std::fill(t->begin(), t->end(), 0.);
    const double scale = 1 / std::sqrt(20.);
    // In float −10⁹ swallows what is added to it: all keys weigh alike. In double it changes no weight.
    const bool swallows = sizeof(mha::Accumulator<T>) == sizeof(float);
    for (Index i = 0; i < 37; ++i)
      for (Index h = 0; h < 2; ++h) {
        const bool far = i % 3 == 0;
        double p[70], dp[70], sum = 0, delta = 0;
        for (Index k = 0; k < 70; ++k) {
          bias(i, k) = far ? -1e9f : 0.f;
          double s = 0;
          dp[k] = 0;
          for (Index d = 0; d < 20; ++d) s += scale * x.q(0, i, h, d) * x.k(0, k, 0, d);
          for (Index d = 0; d < 12; ++d) dp[k] += x.d_out(0, i, h, d) * x.v(0, k, 0, d);
          sum += p[k] = std::exp(far && swallows ? 0 : s);
        }
        for (Index k = 0; k < 70; ++k) delta += (p[k] /= sum) * dp[k];
        for (Index k = 0; k < 70; ++k) {
          for (Index d = 0; d < 20; ++d) {
            expected.q(0, i, h, d) += scale * p[k] * (dp[k] - delta) * x.k(0, k, 0, d);
            expected.k(0, k, 0, d) += scale * p[k] * (dp[k] - delta) * x.q(0, i, h, d);
          }
          for (Index d = 0; d < 12; ++d) expected.v(0, k, 0, d) += p[k] * x.d_out(0, i, h, d);
        }
      }
  }
  /// The worst relative error of B's gradients, those of the far queries alone among them.
  template <class B> double error() const {
    const auto g = c.template gradients<B>(mha::AdditiveBias{bias});
    mha::Tensor<double, 4> far(1, 13, 2, 20), expected_far = far;
    for (mha::Index i = 0; i < 37; i += 3)
      for (mha::Index h = 0; h < 2; ++h)
        for (mha::Index d = 0; d < 20; ++d) {
          far(0, i / 3, h, d) = to_double(g.query(0, i, h, d));
          expected_far(0, i / 3, h, d) = expected.q(0, i, h, d);
        }
    double worst = relative_error(far, expected_far);
    worst = maximum(worst, relative_error(g.query, expected.q));
    worst = maximum(worst, relative_error(g.key, expected.k));
    return maximum(worst, relative_error(g.value, expected.v));
  }
};

}  // namespace support
