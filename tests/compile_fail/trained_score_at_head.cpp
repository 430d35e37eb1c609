// SPDX-License-Identifier: Apache-2.0
// expect: mha: a trained score has neither prepared() nor at_head()
#include <mha/mha.hpp>

template <class X> struct Slope {
  X slope;
  template <class T> auto operator()(T s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
#ifdef MHA_FAIL
  Slope at_head(int, int h) const { return {slope / X(1 + h)}; }
#else
  Slope of_head(int h) const { return {slope / X(1 + h)}; }
#endif
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape) {
  return mha::attention_backward(x, x, x, x, x, tape, Slope<float>{});
}
