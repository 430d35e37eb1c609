// SPDX-License-Identifier: Apache-2.0
// expect only: mha: this score takes one number type only, so it has no derivative
#include <mha/mha.hpp>

struct Same {
#ifdef MHA_FAIL
  float operator()(float s, int, int, int, int) const { return s; }
#else
  template <class T> T operator()(T s, int, int, int, int) const { return s; }
#endif
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape) {
  return mha::attention_backward(x, x, x, x, x, tape, Same{});
}
