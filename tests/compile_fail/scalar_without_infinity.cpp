// SPDX-License-Identifier: Apache-2.0
// expect: mha: this scalar has no infinity
#include <mha/core/scalar.hpp>

#ifdef MHA_FAIL
auto hidden = mha::minus_infinity<int>();
#else
auto hidden = mha::minus_infinity<float>();
#endif
