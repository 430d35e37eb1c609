// SPDX-License-Identifier: Apache-2.0
// expect: mha: on a device accumulate(gradient, dt, s, b, h, q, k) of a layer's score is given a span of the device's
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

void use(const mha::MultiHeadAttention<float, Device, Table>& layer) {
#ifdef MHA_FAIL
  static_cast<void>(layer.tape());
#else
  static_cast<void>(layer.gradients());
#endif
}
