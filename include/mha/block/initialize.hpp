// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "../core/check.hpp"
#include "../core/mersenne.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/projection.hpp"
#include "linear_weights.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T> struct FeedForwardViews;  // feed_forward_weights.hpp
template <class T> struct ParameterViews;    // layer/parameter_views.hpp

/// Weights uniform in ±gain·√(6 / (in + out)) of their matrix, biases 0, norms and gates of heads 1.
///
/// The same seed gives the same weights on every machine, for every projection policy and every backend. Two parts of a
/// model that are given one seed begin with the same numbers, up to a factor: give each a seed of its own.
/// Errors    ShapeError if the gain is not finite, before a number is drawn
/// Source    Glorot & Bengio 2010, eq. 16
struct XavierUniform {
  std::uint64_t seed = 0;
  double gain = 1;

  /// Of an attention layer.
  template <class T> void operator()(const ParameterViews<T>& p) const {
    Draw<T> draw{detail::Mersenne64(seed), finite_gain()};
    for (T& x : p.flat()) x = T(Accumulator<T>(0));
    for (const HeadWeights<T>* w : {&p.query, &p.key, &p.value})
      for (Index e = 0; e < w->model(); ++e)
        for (Index h = 0; h < w->head_count(); ++h)
          for (Index d = 0; d < w->head_dim(); ++d)
            w->heads(h, e, d) = draw(w->model(), w->head_count() * w->head_dim());
    draw.fill(p.output.weight);
    for (const TensorView<T, 1>* ones : {&p.query_norm, &p.key_norm, &p.gate})
      for (Index i = 0; i < ones->extent[0]; ++i) (*ones)(i) = T(Accumulator<T>(1));
  }

  /// Of a Linear.
  template <class T> void operator()(const LinearViews<T>& p) const {
    Draw<T> draw{detail::Mersenne64(seed), finite_gain()};
    for (T& x : p.flat()) x = T(Accumulator<T>(0));
    draw.fill(p.weight);
    draw.fill(p.gate);
  }

  /// Of a FeedForward: of both Linears, the seed of down made from that of up.
  template <class T> void operator()(const FeedForwardViews<T>& p) const {
    constexpr std::uint64_t another = 0x9e3779b97f4a7c15;
    (*this)(p.up);
    XavierUniform{.seed = seed ^ another, .gain = gain}(p.down);
  }

 private:
  double finite_gain() const {
    detail::require(std::isfinite(gain), "XavierUniform: gain is ", gain, ", not finite");
    return gain;
  }

  template <class T> struct Draw {
    detail::Mersenne64 bits;
    double gain;

    T operator()(Index in, Index out) {
      const double unit = static_cast<double>(bits() >> 11) * 0x1p-53;  // [0, 1), exact in double
      return T(static_cast<Accumulator<T>>((2 * unit - 1) * gain * std::sqrt(6.0 / (double(in) + out))));
    }
    void fill(const TensorView<T, 2>& w) {
      for (Index i = 0; i < w.extent[0]; ++i)
        for (Index j = 0; j < w.extent[1]; ++j) w(i, j) = (*this)(w.extent[0], w.extent[1]);
    }
  };
};

}  // namespace mha::inline MHA_NAMESPACE
