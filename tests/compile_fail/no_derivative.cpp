// SPDX-License-Identifier: Apache-2.0
// expect: mha: this score takes one number type only, so it has no derivative
#include <mha/policy/score.hpp>

struct Fixed {
  float operator()(float s, int, int, int, int) const { return s; }
};
struct Generic {
  template <class T> T operator()(T s, int, int, int, int) const { return s; }
};

#ifdef MHA_FAIL
auto slope = mha::differentiate(Fixed{}, 1.f, 0, 0, 0, 0);
#else
auto slope = mha::differentiate(Generic{}, 1.f, 0, 0, 0, 0);
#endif
