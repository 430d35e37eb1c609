// SPDX-License-Identifier: Apache-2.0
// expect: mha: accumulate(gradient, dt, s, b, h, q, k) of a score takes a span of doubles
#include <span>

#include <mha/mha.hpp>

#ifdef MHA_FAIL
using Gradient = float*;
#else
using Gradient = std::span<double>;
#endif

struct Table {
  float table[8];
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  template <class S> S operator()(S s, int, int, int q, int k) const { return s + table[(q + k) % 8]; }
  void accumulate(Gradient gradient, float dt, float s, int b, int h, int q, int k) const;
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float>& tape, const Table& score) {
  return mha::attention_backward(x, x, x, x, x, tape, score);
}
