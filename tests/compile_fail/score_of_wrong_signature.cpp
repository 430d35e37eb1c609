// SPDX-License-Identifier: Apache-2.0
// expect: mha: score(f) needs a functor
#include <mha/policy/score.hpp>

#ifdef MHA_FAIL
[[maybe_unused]] const auto score = mha::score([](auto s, int q, int k) { return s - float(q - k); });
#else
[[maybe_unused]] const auto score = mha::score([](auto s, int, int, int q, int k) { return s - float(q - k); });
#endif
