// SPDX-License-Identifier: Apache-2.0
// expect: mha: the constructor of a Linear takes a backend, an activation and a Dropout once each
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::Linear<float> linear({.inputs = 3, .outputs = 4}, mha::Dropout{.p = 0.1f}, mha::Dropout{.p = 0.9f});
#else
mha::Linear<float> linear({.inputs = 3, .outputs = 4}, mha::Dropout{.p = 0.1f});
#endif
