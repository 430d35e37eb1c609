// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the gradients of a trained score are assigned to a score of its type
#include <mha/mha.hpp>

template <class X> struct Slope {
#ifdef MHA_FAIL
  const X slope;
#else
  X slope;
#endif
  template <class T> auto operator()(T s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape) {
  return mha::attention_backward(x, x, x, x, x, tape, Slope<float>{1});
}
