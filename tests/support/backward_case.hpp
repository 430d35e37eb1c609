// SPDX-License-Identifier: Apache-2.0
// One attention call with random inputs, its backward pass, and its derivative along a direction by dual numbers.
#pragma once

#include <cmath>
#include <string>

#include <mha/attention_backward.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/core/dual.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace support {

struct BackwardSizes {
  int batch = 2, queries = 5, keys = 7, heads = 4, kv_heads = 2, head_dim = 3, value_dim = 4;
};

template <class T> struct BackwardCase {
  mha::Tensor<T, 4> q, k, v, d_out;

  BackwardCase() = default;
  BackwardCase(const std::string& stream, const BackwardSizes& n)
      : q(n.batch, n.queries, n.heads, n.head_dim),
        k(n.batch, n.keys, n.kv_heads, n.head_dim),
        v(n.batch, n.keys, n.kv_heads, n.value_dim),
        d_out(n.batch, n.queries, n.heads, n.value_dim) {
    Random random(stream);
    for (auto* x : {&q, &k, &v, &d_out}) random.fill(*x);
  }

  template <class U> BackwardCase<U> as() const {
    BackwardCase<U> other;
    const auto convert = [](const auto& from, auto& to) {
      to = mha::Tensor<U, 4>(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
      for (std::size_t i = 0; i < from.size(); ++i)
        to.data()[i] =
            static_cast<U>(static_cast<mha::Accumulator<U>>(static_cast<mha::Accumulator<T>>(from.data()[i])));
    };
    convert(q, other.q);
    convert(k, other.k);
    convert(v, other.v);
    convert(d_out, other.d_out);
    return other;
  }

  /// Forward and backward, with what the call is given.
  template <class B, class... Extra> auto gradients(const Extra&... extra) const {
    mha::AttentionTape<T, B> tape;
    const auto out = mha::attention<B>(q, k, v, extra..., mha::record(tape));
    return mha::attention_backward(d_out, q, k, v, out, tape, extra...);
  }
};

/// ⟨d_out, J δ⟩, where J is the derivative of the Reference's forward and δ the change of q, k and v.
template <class... Extra>
double derivative_along(const BackwardCase<double>& at, const BackwardCase<double>& direction, const Extra&... extra) {
  using Dual = mha::Dual<double>;
  const auto both = [](const mha::Tensor<double, 4>& x, const mha::Tensor<double, 4>& d) {
    mha::Tensor<Dual, 4> r(x.extent(0), x.extent(1), x.extent(2), x.extent(3));
    for (std::size_t i = 0; i < x.size(); ++i) {
      r.data()[i].value = x.data()[i];
      r.data()[i].derivative[0] = d.data()[i];
    }
    return r;
  };
  const auto out = mha::attention<mha::Reference>(both(at.q, direction.q), both(at.k, direction.k),
                                                  both(at.v, direction.v), extra...);
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += at.d_out.data()[i] * out.data()[i].derivative[0];
  return sum;
}

/// What rounding to T explains of a gradient on CUDA, by norm: 16-bit weights and dS are rounded, and what is stored.
template <class T>
constexpr double gradient_bound = std::is_same_v<T, double>      ? 1e-12
                                  : std::is_same_v<T, float>     ? 5e-6
                                  : std::is_same_v<T, mha::half> ? 2e-3
                                                                 : 1.2e-2;

/// ‖a − b‖ / (‖b‖ + least), NaN if an element is; 0 where both are nothing. `least` is for sums whose terms may cancel.
template <class A, class B> double relative_error(const A& a, const B& b, double least = 0) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = to_double(a.data()[i]), y = to_double(b.data()[i]);
    error += (x - y) * (x - y);
    size += y * y;
  }
  return error == 0 ? 0 : std::sqrt(error) / (std::sqrt(size) + least);
}

}  // namespace support
