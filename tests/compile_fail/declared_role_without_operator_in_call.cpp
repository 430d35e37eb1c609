// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor is neither a mask
#include <mha/attention.hpp>

// It says that it is a mask, but returns int: it must not be left out of the call in silence.
struct Says {
  static constexpr mha::Role role = mha::Role::mask;
  int operator()(int, int, int q, int k) const { return k <= q; }
};
struct Does {
  static constexpr mha::Role role = mha::Role::mask;
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

auto result(const mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, Says{});
#else
  return mha::attention(x, x, x, Does{});
#endif
}
