// SPDX-License-Identifier: Apache-2.0
// expect: mha: Gated<F> needs a function of one number
#include <mha/policy/activation.hpp>

struct Square {
#ifdef MHA_FAIL
  float operator()(float x, float y) const { return x * y; }
#else
  float operator()(float x) const { return x * x; }
#endif
};
[[maybe_unused]] const mha::Gated<Square> pair{};
