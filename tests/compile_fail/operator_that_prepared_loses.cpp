// SPDX-License-Identifier: Apache-2.0
// expect: mha: a policy has an operator() of its own and inherits a prepared() that does not return it
#include <mha/mha.hpp>

// A cap with something added, which prepared() of the cap knows nothing of.
struct Inherits : mha::SoftCap {
  template <class T> T operator()(T s, int b, int h, int q, int k) const {
    return mha::SoftCap::operator()(s, b, h, q, k) + 1;
  }
};
struct Holds {
  mha::SoftCap cap;
  template <class T> T operator()(T s, int b, int h, int q, int k) const { return cap(s, b, h, q, k) + 1; }
};

void call(const mha::Tensor<float, 2>& x) {
#ifdef MHA_FAIL
  static_cast<void>(mha::attention(x, x, x, Inherits{{2.f}}));
#else
  static_cast<void>(mha::attention(x, x, x, Holds{{2.f}}));
#endif
}
