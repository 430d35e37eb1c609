// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a score that is a class template over its scalar is trained
#include <mha/mha.hpp>

template <class X> struct Near {
#ifdef MHA_FAIL
  int reach;
#else
  X reach;
#endif
  X slope;
  template <class T> auto operator()(T s, int, int, int q, int k) const {
    return s - slope * float(mha::abs(q - k)) + float(0) * reach;
  }
};

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape) {
  return mha::attention_backward(x, x, x, x, x, tape, Near<float>{});
}
