// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "../core/scalar.hpp"
#include "parameters.hpp"

namespace mha::inline v0 {

/// Weights uniform in ±gain·√(6 / (in + out)) of their matrix, biases 0, norms and gates 1.
///
/// The same seed gives the same weights on every machine and for every projection policy.
/// Source    Glorot & Bengio 2010, eq. 16
struct XavierUniform {
  std::uint64_t seed = 0;
  double gain = 1;

  template <class T> void operator()(const ParameterViews<T>& p) const {
    std::mt19937_64 bits(seed);
    for (T& x : p.flat()) x = T(Accumulator<T>(0));
    const auto draw = [&](Index in, Index out) {
      const double unit = static_cast<double>(bits() >> 11) * 0x1p-53;  // [0, 1), exact in double
      return T(static_cast<Accumulator<T>>((2 * unit - 1) * gain * std::sqrt(6.0 / (double(in) + out))));
    };
    for (const HeadWeights<T>* w : {&p.query, &p.key, &p.value})
      for (Index e = 0; e < w->model(); ++e)
        for (Index h = 0; h < w->head_count(); ++h)
          for (Index d = 0; d < w->head_dim(); ++d)
            w->heads(h, e, d) = draw(w->model(), w->head_count() * w->head_dim());
    const TensorView<T, 2>& o = p.output.weight;
    for (Index i = 0; i < o.extent[0]; ++i)
      for (Index j = 0; j < o.extent[1]; ++j) o(i, j) = draw(o.extent[0], o.extent[1]);
    for (const TensorView<T, 1>* ones : {&p.query_norm, &p.key_norm, &p.gate})
      for (Index i = 0; i < ones->extent[0]; ++i) (*ones)(i) = T(Accumulator<T>(1));
  }
};

}  // namespace mha::inline v0
