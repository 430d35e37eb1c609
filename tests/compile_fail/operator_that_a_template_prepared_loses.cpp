// SPDX-License-Identifier: Apache-2.0
// expect: mha: a policy has an operator() of its own and inherits a prepared() that does not return it
#include <vector>

#include <mha/mha.hpp>

// A bias with something added, which prepared() of the bias, a template, knows nothing of.
struct Inherits : mha::RelativeBias {
  using mha::RelativeBias::RelativeBias;
  template <class T> T operator()(T s, int, int, int, int) const { return s + 1; }
};

void call(const mha::Tensor<float, 2>& x) {
#ifdef MHA_FAIL
  static_cast<void>(mha::attention(x, x, x, Inherits(std::vector<float>(32))));
#else
  static_cast<void>(mha::attention(x, x, x, mha::RelativeBias(std::vector<float>(32))));
#endif
}
