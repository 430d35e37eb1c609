// SPDX-License-Identifier: Apache-2.0
// expect: mha: mask(f) needs a functor
#include <mha/policy/mask.hpp>

#ifdef MHA_FAIL
[[maybe_unused]] const auto mask = mha::mask([](int, int, int q, int k) { return q - k; });
#else
[[maybe_unused]] const auto mask = mha::mask([](int, int, int q, int k) { return q >= k; });
#endif
