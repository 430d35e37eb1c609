// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor is neither a mask
#include <mha/attention.hpp>

// Almost a score: it returns nothing.
struct Silent {
  void operator()(float, int, int, int, int) const {}
};
struct Loud {
  float operator()(float s, int, int, int, int) const { return s; }
};

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, Silent{});
#else
  return mha::attention(x, x, x, Loud{});
#endif
}
