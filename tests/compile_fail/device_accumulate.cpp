// SPDX-License-Identifier: Apache-2.0
// expect: mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a score is given a span of the device's own
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

void result(mha::TensorView<float, 4> x, const mha::AttentionTape<float, Device>& tape, Table table) {
#ifdef MHA_FAIL
  mha::attention_backward_into({x, x, x}, x, x, x, x, x, tape, table, mha::ScoreGradient(table));
#else
  mha::attention_backward_into({x, x, x}, x, x, x, x, x, tape, table);
#endif
}
