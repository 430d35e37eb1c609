// SPDX-License-Identifier: Apache-2.0
// expect: mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a call's score is given a span of the device's
// own
#include <span>

#include <mha/mha.hpp>

// A backend that sums the gradients of scores itself.
struct Device : mha::Reference {
  static constexpr bool sums_scores = true;
};

struct Table {
  float table[8];
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  template <class S> S operator()(S s, int, int, int q, int k) const { return s + table[(q + k) % 8]; }
  template <class S> void accumulate(std::span<double> gradient, S dt, S, int, int, int q, int k) const {
    gradient[std::size_t((q + k) % 8)] += double(dt);
  }
};

void use(const mha::MultiHeadAttention<float, Device>& layer, const mha::Tensor<float, 3>& x, Table table) {
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  static_cast<void>(layer(x, tape, table));
#ifdef MHA_FAIL
  static_cast<void>(layer.backward(x, tape, gradients, mha::ScoreGradient(table)));
#else
  static_cast<void>(layer.backward(x, tape, gradients));
#endif
}
