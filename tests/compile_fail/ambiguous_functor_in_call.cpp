// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor can be called as a mask and as a score
#include <mha/attention.hpp>

struct Either {
  bool operator()(int, int, int, int) const { return true; }
  template <class T> T operator()(T s, int, int, int, int) const { return s; }
};
struct Declared : Either {
  static constexpr mha::Role role = mha::Role::mask;
};

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, Either{});
#else
  return mha::attention(x, x, x, Declared{});
#endif
}
