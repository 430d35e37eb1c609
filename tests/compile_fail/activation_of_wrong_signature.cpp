// SPDX-License-Identifier: Apache-2.0
// expect: mha: an activation is a function of one number
#include <mha/policy/activation.hpp>

struct Positive {
#ifdef MHA_FAIL
  bool operator()(double x) const { return x > 0; }
#else
  double operator()(double x) const { return x > 0 ? x : 0; }
#endif
};
[[maybe_unused]] constexpr bool fits = mha::detail::check_activation<Positive>();
