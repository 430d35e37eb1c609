// SPDX-License-Identifier: Apache-2.0
// expect: mha: a score with numbers() is trained by its accumulate(gradient, dt, s, b, h, q, k) const
#include <span>

#include <mha/mha.hpp>

struct Table {
  float table[8];
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  template <class S> S operator()(S s, int, int, int q, int k) const { return s + table[(q + k) & 7]; }
#ifdef MHA_FAIL
  static constexpr bool trainable = true;
#else
  static constexpr bool trainable = false;
#endif
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float>& tape, const Table& score) {
  return mha::attention_backward(x, x, x, x, x, tape, score);
}
